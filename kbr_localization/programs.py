"""Start `kbr` and the nodes: imports with short errors, and the console scripts of the nodes."""

from functools import partial
import importlib
import signal
import sys

from kbr_localization.resources import describe_missing


def start(program: str, module: str) -> int:
    """Import a module and return the exit code of its `main`; 2 if a dependency is missing."""
    # Ctrl-C during the imports ends the process at once, without a traceback
    handles_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_ctrl_c:  # false in the background of a shell script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if not (text := describe_missing(error.name)):
            raise
        print(f'{program}: {text}', file=sys.stderr)
        return 2
    if handles_ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main() or 0)


localization_node = partial(start, 'localization_node', 'kbr_localization.ros.node')
player_node = partial(start, 'player_node', 'kbr_localization.ros.player')
recorder_node = partial(start, 'recorder_node', 'kbr_localization.ros.recorder')
