"""Packaging: the wheel and the sdist hold what the tree holds, and import without heavy parts."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("unikv", "backends", "kernels", "tools")


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


def test_the_mapped_folders_are_flat_and_linked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setup = project["tool"]["setuptools"]
    assert sorted(setup["packages"]) == sorted(setup["package-dir"])
    for name in FOLDERS[1:]:
        assert setup["package-dir"][f"unikv.{name}"] == name
        assert (ROOT / "unikv" / name).is_symlink()
        assert (ROOT / "unikv" / name).resolve() == ROOT / name
        inner = [p for p in (ROOT / name).iterdir() if p.is_dir() and p.name != "__pycache__"]
        assert inner == [], f"{name}/ must stay flat"


def test_no_file_is_longer_than_400_lines() -> None:
    files = [
        p for folder in (*FOLDERS, "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")
    ]
    assert files
    long = {
        str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > 400
    }
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).glob("*.py"):
            assert path.read_text().startswith('"""'), path


@pytest.mark.parametrize(
    "module", ["unikv", "unikv.tools.cli", "unikv.tools.inspect", "unikv.keys"]
)
def test_import_loads_neither_torch_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'rich'}} & set(sys.modules)))"
    assert run(sys.executable, "-c", code).strip() == "[]"


def test_public_names_load_and_are_listed() -> None:
    code = "import unikv; [getattr(unikv, n) for n in unikv.__all__]; print(len(dir(unikv)) > 10)"
    assert run(sys.executable, "-c", code).strip() == "True"
    code = "import unikv; unikv.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'nothing'" in done.stderr


def test_a_name_that_needs_torch_says_so_where_there_is_none() -> None:
    code = "import sys; sys.modules['torch'] = None; import unikv; unikv.KVSpec; unikv.Client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: unikv.Client needs torch: " in done.stderr
    assert "pip install 'unikv[torch]'" in done.stderr


def test_versions_agree() -> None:
    import unikv

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == unikv.__version__


@pytest.mark.slow
def test_wheel_and_sdist_pass_from_outside_the_tree(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(ROOT))
    [wheel] = (tmp_path / "dist").glob("*.whl")
    [sdist] = (tmp_path / "dist").glob("*.tar.gz")
    tests = tmp_path / "outside" / "tests"
    tests.parent.mkdir()
    run("cp", "-r", str(ROOT / "tests"), str(ROOT / "docs"), str(tests.parent))
    for name in ("pyproject.toml", "constraints.txt"):
        run("cp", str(ROOT / name), str(tests.parent))
    for source in (wheel, sdist):
        venv = tmp_path / source.suffix
        run(sys.executable, "-m", "venv", "--system-site-packages", str(venv))
        python = str(venv / "bin" / "python")
        # The outer environment's libraries serve; only unikv itself must come from the archive.
        site = run(sys.executable, "-c", "import site; print(site.getsitepackages()[0])").strip()
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(source))
        [inner] = (venv / "lib").glob("python*/site-packages")
        (inner / "outer.pth").write_text(site + "\n")
        where = run(python, "-c", "import unikv; print(unikv.__file__)", cwd=tests.parent)
        assert str(venv) in where
        chosen = ["tests/client", "tests/objects", "tests/identity"]
        out = run(
            python, "-m", "pytest", "-q", "-m", "not slow and not demo", *chosen, cwd=tests.parent
        )
        assert " passed" in out
        assert run(str(venv / "bin" / "unikv"), "--help").startswith("usage: unikv")
