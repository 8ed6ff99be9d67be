"""Notices, asked by code: what they say is for people, and only a test of the words reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.notice import Notice, NoticeCode, SourceCode


def codes(notices: Iterable[Notice]) -> list[NoticeCode | SourceCode]:
    """What was noticed, in order."""
    return [notice.code for notice in notices]


def texts(notices: Iterable[Notice], code: NoticeCode | SourceCode | None = None) -> list[str]:
    """What is said, of one code or of all."""
    return [str(notice) for notice in notices if code in (None, notice.code)]
