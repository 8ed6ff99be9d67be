"""What a whole capture tells before any step is cut out: messages, clocks, groups, who sits where.

What reconstruction tells about itself: how each fact was found, how sure it is, and what was left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.model.notice import Notices

if TYPE_CHECKING:
    from tracetool.model.notice import NoticeCode, Subject


Evidence = Literal[
    "label", "metadata", "autograd", "kernels", "messages", "order", "schedule fit", "inferred", "copied", "assumed"
]
"""How a fact is known, roughly from the surest down."""

UNCHECKED = 0.5
"""Confidence of a fact that nothing in the trace confirms or contradicts."""


class Finding(NamedTuple):
    """A fact and how it is known.

    Attributes:
        fact: What kind of fact: steps, pipeline, coordinates, clocks, segments, schedule, transfers, memory, layers,
            launches, recompute.
        subject: What it is about: ``rank 0``, ``stage 2``, ``all``.
        value: What was found, for people.
        evidence: The best that the trace holds for it.
        confidence: Share of the independent checks that agree; 1 where the trace itself says it.
        detail: What disagrees, or what the evidence leaves open.
    """

    fact: str
    subject: str
    value: str
    evidence: Evidence
    confidence: float = 1.0
    detail: str | None = None


@dataclass(slots=True)
class Account:
    """Collects findings and notes while a Run is reconstructed.

    Attributes:
        notes: What was left out, repaired or is missing.
        findings: Facts with their evidence.
    """

    notes: Notices = field(default_factory=Notices)
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: NoticeCode, text: str, *, hint: str | None = None, subject: Subject | None = None) -> None:
        """Add a notice, once; see :class:`tracetool.model.notice.Notice`."""
        self.notes.add(code, text, hint=hint, subject=subject)

    def find(
        self,
        fact: str,
        subject: Subject | str,
        value: str,
        evidence: Evidence,
        confidence: float = 1.0,
        detail: str | None = None,
    ) -> None:
        """Add a finding; see :class:`Finding`."""
        self.findings.append(Finding(fact, str(subject), value, evidence, confidence, detail))

    def take_up(self, other: Account) -> None:
        """Add all that another account holds."""
        for note in other.notes:
            self.notes.add(note.code, note.text, hint=note.hint, subject=note.subject)
        self.findings += other.findings
