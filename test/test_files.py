"""Files that appear as a whole or not at all."""

from kbr_localization.files import new_file, write_text
import pytest


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with new_file(path, sync=True) as part:
        part.write_text('new')
        assert path.read_text() == 'old'
    assert path.read_text() == 'new'
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_stays_and_the_error_names_it(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with pytest.raises(OSError, match='no space') as caught, new_file(path) as part:
        part.write_text('half')
        raise OSError(28, 'no space left')
    assert caught.value.filename == str(path)
    assert path.read_text() == 'old'
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_told_by_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / 'no' / 'a.txt', 'text')
    assert caught.value.filename == str(tmp_path / 'no' / 'a.txt')


def test_a_link_goes_on_to_lead_to_the_file(tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path / 'a.txt')
    write_text(tmp_path / 'link', 'text')
    assert (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'a.txt').read_text() == 'text'
