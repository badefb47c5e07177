"""A cache that cannot be used is a note in the log, said once, and never an error."""

import errno
import os
import shutil

import pytest

from checkmate.core import cache

DATA = {"seconds": 1.5}


@pytest.fixture(autouse=True)
def notes(caplog, monkeypatch):
    monkeypatch.setattr(cache, "_noted", set())
    return lambda: [record.getMessage() for record in caplog.records]


def test_what_was_written_is_read(tmp_path, notes):
    path = tmp_path / "folder" / "file.json"
    assert cache.read_cached(path, dict) is None
    cache.write_cached(path, DATA)
    assert cache.read_cached(path, dict) == DATA
    assert not notes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["checkmate.core.json_files.tempfile.mkstemp", "os.replace"])
def test_a_folder_that_cannot_be_written_to_is_noted_once(
    tmp_path, notes, monkeypatch, call, number
):
    def fails(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(call, fails)
    for name in ("a.json", "b.json"):
        cache.write_cached(tmp_path / name, DATA)
    (note,) = notes()
    assert f"The cache in {tmp_path} is not used" in note
    assert os.strerror(number) in note
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("place", ["/dev/null/cache", "~/cache", "x" * 5000])
def test_a_place_where_no_folder_can_be(notes, place):
    path = cache.Path(place) / "file.json"
    cache.write_cached(path, DATA)
    assert cache.read_cached(path, dict) is None
    assert notes()


@pytest.mark.parametrize("text", ["", "[]", '{"seconds": 1', '{"minutes": 1}', "\xff", "[" * 10**6])
def test_a_damaged_file_is_as_none_and_is_written_anew(tmp_path, notes, text):
    path = tmp_path / "file.json"
    path.write_text(text, encoding="latin-1")
    assert cache.read_cached(path, lambda data: data["seconds"]) is None
    assert notes()
    cache.write_cached(path, DATA)
    assert cache.read_cached(path, lambda data: data["seconds"]) == DATA["seconds"]


def test_a_folder_in_the_place_of_the_file(tmp_path, notes):
    (tmp_path / "file.json").mkdir()
    assert cache.read_cached(tmp_path / "file.json", dict) is None
    cache.write_cached(tmp_path / "file.json", DATA)
    assert len(notes()) == 1


def test_code_is_compiled_where_the_folder_for_it_was_lost(tmp_path, notes, monkeypatch):
    import numba

    from checkmate.solvers.annealing.compile import entry

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))

    def twice(x):
        return 2 * x

    compiled = entry(twice)
    assert str(tmp_path) in compiled.stats.cache_path
    shutil.rmtree(tmp_path / "numba")
    (tmp_path / "numba").write_text("a file")
    assert compiled(4) == 8
    assert len(notes()) == 1
