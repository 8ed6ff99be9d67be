"""Traces and Runs on S3, as moto's server plays it: by the commands, with a writer that is killed, and what refuses.

To load and start the server takes as long as what is asked of it. By default the same is asked of a store in memory
(test_remote): here what S3 and its package do otherwise is seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import SAMPLES, derived

from tracetool.cli import run as command
from tracetool.errors import StoreError
from tracetool.ingestion import ingest
from tracetool.store import as_path
from tracetool.store.objects import Objects
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEEDED = ("upath", "s3fs", "moto", "flask", "flask_cors")
pytestmark = [
    pytest.mark.thorough,
    # To look for them costs nothing; to load them, in every worker that collects these tests, two seconds.
    pytest.mark.skipif(not all(map(find_spec, _NEEDED)), reason="needs the dependency group s3 (moto's server)"),
    pytest.mark.filterwarnings("default"),  # what botocore and the server warn of is not ours to mend
]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket with the four ranks of a sample, on a server of this process."""
    server = import_module("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }.items():
            patch.setenv(name, value)
        s3fs: Any = import_module("s3fs")
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        store.mkdir("jobs")
        files = sorted((SAMPLES / "h100-1f1b").glob("*.gz"))
        store.put([str(file) for file in files], [f"jobs/traces/{file.name}" for file in files])
        yield "s3://jobs"
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_from_and_to_a_bucket_by_the_commands(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{bucket}/x.run"
    assert command(["ingest", f"{bucket}/traces", "-o", name, "-q"]) == 0
    there, here = Run(name), derived(SAMPLES / "h100-1f1b")
    for table in ("events", "comms", "ops", "stages", "idles"):
        assert there.table(table).equals(here.table(table)), table
    capsys.readouterr()
    for words in (["info"], ["replay", "--schedule", "geopipe"]):
        assert command([words[0], name, *words[1:], "-q"]) == 0
        on_s3 = capsys.readouterr().out
        assert command([words[0], str(here.path), *words[1:], "-q"]) == 0
        assert capsys.readouterr().out == on_s3
    assert command(["sql", name, "select count(*) as n from ops", "--format", "csv"]) == 0
    assert capsys.readouterr().out == f"n\n{here.count('ops')}\n"


def test_a_killed_writer_leaves_no_run(bucket: str) -> None:
    """Killed between the last other object and the manifest: who writes it anew is not misled by what is there."""
    name, trace = f"{bucket}/killed.run", f"{bucket}/traces/rank3.json.gz"
    held = "import os, signal, s3fs; s3fs.S3FileSystem.put_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
    code = held + f"from tracetool.cli import run; run(['ingest', {trace!r}, '-o', {name!r}, '-q'])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -signal.SIGKILL
    left = Objects(as_path(name)).sizes
    assert "events/source-00000.parquet" in left
    assert "manifest.json" not in left
    with pytest.raises(StoreError, match="was not finished"):
        ingest([trace], name)
    events = derived(SAMPLES / "h100-1f1b").rows("SELECT count(*) FROM events WHERE rank = 3")
    assert ingest([trace], name, force=True).rows("SELECT count(*) FROM events") == events


def test_what_refuses_is_told_with_what_to_do(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store: Any = import_module("s3fs").S3FileSystem
    assert command(["ingest", str(SAMPLES / "h100-1f1b"), "-o", "s3://nowhere/x.run", "-q"]) == 2
    assert (
        "s3://nowhere/x.run cannot be written: The specified bucket does not exist.\nHint: make the bucket first"
        in (capsys.readouterr().err)
    )
    assert not store().exists("nowhere"), "no bucket is made that nobody asked for"
    assert command(["info", f"{bucket}/y.run"]) == 2
    assert "s3://jobs/y.run does not exist" in capsys.readouterr().err
    for variable, value in (("AWS_ACCESS_KEY_ID", None), ("AWS_ENDPOINT_URL", "http://127.0.0.1:1")):
        with monkeypatch.context() as patch:
            patch.delenv(variable) if value is None else patch.setenv(variable, value)
            store.clear_instance_cache()
            assert command(["info", f"{bucket}/x.run"]) == 2
            error = " ".join(capsys.readouterr().err.split())
            assert "s3://jobs/x.run cannot be read" in error
            assert "check credentials and address" in error
            assert "AWS_ENDPOINT_URL" in error
        store.clear_instance_cache()
