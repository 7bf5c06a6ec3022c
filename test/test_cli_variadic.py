from kbr_localization.cli.options import repeat_options
import pytest


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ('compare --train a b --test c', 'compare --train a --train b --test c'),
        ('compare --train a --train b', 'compare --train a --train b'),
        ('compare --train a b c --json', 'compare --train a --train b --train c --json'),
        ('compare --train a b --sizes 5 --out d', 'compare --train a --train b --sizes 5 --out d'),
        ('compare --train a - b', 'compare --train a --train - --train b'),
        ('compare --train=a b', 'compare --train=a b'),
        ('compare --train', 'compare --train'),
        ('map build a b', 'map build a b'),
    ],
)
def test_an_option_is_repeated_before_each_of_its_values(given, expected):
    assert repeat_options(given.split(), ['--train', '--test']) == expected.split()
