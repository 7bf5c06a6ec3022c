"""Programs of the documentation run and print what it says; the reference has every name."""

import contextlib
import io
from pathlib import Path
import re
import runpy
import subprocess
import sys

from kbr_localization import kernels
import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / 'docs' / 'tutorial.md'
GALLERY = sorted((ROOT / 'docs' / 'gallery').glob('*.py'))

if not TUTORIAL.is_file():
    pytest.skip('the folder docs/ is not installed', allow_module_level=True)


PROGRAMS = re.findall(r'```python\n(.*?)```', TUTORIAL.read_text(encoding='utf-8'), re.S)
SMALLEST, OWN_KERNELS, CHOSEN = PROGRAMS


def printed_by(program):
    """Lines that a program of the tutorial prints, each of which the page has to quote."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, str(TUTORIAL), 'exec'), {'__name__': 'tutorial'})
    lines = output.getvalue().splitlines()
    assert lines
    for line in lines:
        assert f'`{line}`' in TUTORIAL.read_text(encoding='utf-8')
    return lines


@pytest.mark.parametrize('program', PROGRAMS)
def test_tutorial_is_short(program):
    assert len([line for line in program.splitlines() if line.strip()]) <= 30


def test_the_readme_is_short_and_tells_before_it_tabulates():
    lines = (ROOT / 'README.md').read_text(encoding='utf-8').splitlines()
    assert len(lines) <= 120
    assert lines.index('## What to expect') + 2 < next(i for i, s in enumerate(lines) if '|' in s)


def test_the_smallest_example_agrees_with_the_exact_posterior_and_with_what_it_says():
    (line,) = printed_by(SMALLEST)
    mean, deviation = map(float, re.findall(r'[\d.]+', line))
    assert mean == pytest.approx(1 / 5, abs=0.1)  # of precisions 1 and 4 about 1 and 0
    assert deviation == pytest.approx(5**-0.5, abs=0.1)


def test_own_kernels_of_the_tutorial_do_what_it_says():
    angle, table = printed_by(OWN_KERNELS)
    assert 0.5 < float(angle.split()[1]) < 1.5 and table == '[[1, 0, 0], [0, 1, 1]]'


def test_tutorial_agrees_with_the_exact_posterior_and_with_what_it_says():
    (line,) = printed_by(CHOSEN)
    mean, deviation = map(float, re.findall(r'[\d.]+', line))
    assert mean == pytest.approx((16 + 13) / 3, abs=0.8)
    assert deviation == pytest.approx((16 + 13) ** 0.5 / 3, abs=0.5)


def numbers_and_words(text):
    found = re.findall(r'-?\d+\.?\d*', text)
    return [float(number) for number in found], re.sub(r'-?\d+\.?\d*', '#', text).split()


@pytest.mark.parametrize('path', GALLERY, ids=lambda path: path.stem)
def test_the_gallery_prints_what_it_says(path):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(path), run_name='gallery')
    page = (path.parent / 'index.md').read_text(encoding='utf-8')
    shown = page.split(f'"docs/gallery/{path.name}"')[1].split('```text')[1].split('```')[0]
    numbers, words = numbers_and_words(output.getvalue())
    expected_numbers, expected_words = numbers_and_words(shown)
    assert words == expected_words
    # rounding differs between processors, and a flat optimum lets it grow
    assert numbers == pytest.approx(expected_numbers, rel=0.3, abs=0.05)


def test_the_gallery_has_five_programs():
    assert len(GALLERY) >= 5


def test_reference_has_every_public_name(tmp_path):
    pytest.importorskip('mkdocs')
    pytest.importorskip('mkdocstrings')
    command = [sys.executable, '-m', 'mkdocs', 'build', '--quiet', '--site-dir', str(tmp_path)]
    built = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    pages = ''.join(
        page.read_text(encoding='utf-8') for page in (tmp_path / 'reference').rglob('*.html')
    )
    missing = [
        name
        for name in kernels.__all__
        if not re.search(rf'id="kbr_localization\.kernels\.\w+\.{name}"', pages)
    ]
    assert missing == []
    assert 'thresholded' in (tmp_path / 'glossary' / 'index.html').read_text(encoding='utf-8')
