"""How `kbr` and the nodes start; the console scripts of the nodes."""

from functools import partial
import gc
import importlib
import signal
import sys

from kbr_localization.resources import describe_missing


def start(program: str, module: str) -> int:
    """Import a module and return the exit code of its `main`; 2 where another is missing."""
    # Ctrl-C during the imports ends the process at once, without a traceback
    is_listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_listening:  # not in the background of a shell script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # a tenth of the imports; what they make is there to stay
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if not (text := describe_missing(error.name)):
            raise
        print(f'{program}: {text}', file=sys.stderr)
        return 2
    finally:
        gc.enable()
    if is_listening:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main() or 0)


localization_node = partial(start, 'localization_node', 'kbr_localization.ros.node')
player_node = partial(start, 'player_node', 'kbr_localization.ros.player')
recorder_node = partial(start, 'recorder_node', 'kbr_localization.ros.recorder')
