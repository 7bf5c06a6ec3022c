"""Services about maps: another map, one of several maps, the current image added to the map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.ros.localization import Localization
from kbr_localization.ros.maps import parse_map_files
from kbr_localization.ros.settings import Settings
from kbr_localization.ros.telling import Teller
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.task import Future
from std_srvs.srv import Trigger

Result = TypeVar('Result')


class Owner(Protocol):
    """What the services need to know of their node."""

    settings: Settings
    tell: Teller

    def configured(self) -> Localization:
        """Return what is at work; raises LocalizationError before there is anything."""
        ...


class MapServices:
    """
    The services `~/load_map`, `~/load_map/<name>` and `~/add_current`.

    `loading`: whether a map is being read, so that a pose given now is meant for it.
    """

    def __init__(self, node: Node, owner: Owner, on_loaded: Callable[[], None]) -> None:
        self._node, self._owner, self._on_loaded = node, owner, on_loaded
        self._loads = 0
        node.create_service(Trigger, '~/load_map', partial(self._load_map, ''))
        for name in parse_map_files(owner.settings.config.map_files):
            node.create_service(Trigger, f'~/load_map/{name}', partial(self._load_map, name))
        node.create_service(Trigger, '~/add_current', self._add_current)

    @property
    def loading(self) -> bool:
        """Whether a map is being read."""
        return self._loads > 0

    async def _load_map(
        self, name: str, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        self._loads += 1
        try:
            localization = self._owner.configured()
            loaded = await _in(localization.in_background, partial(localization.read_map, name))
            self._check_is_at_hand(localization)
            localization.switch_map(loaded)
            if name:
                self._node.set_parameters([Parameter('map_file', value=name)])
            response.success = True
            response.message = f'{loaded.name}: {len(loaded.kernel_map)} images'
        except KbrError as error:
            response.success, response.message = False, f'the map stays as it was: {error}'
        finally:
            self._loads -= 1
        self._told('load_map', response)
        self._on_loaded()
        return response

    async def _add_current(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        try:
            localization = self._owner.configured()
            if not localization.at_work:
                raise LocalizationError('the node is not active: activate it first')
            added = await _in(localization.session.wish, localization.add_current)
            self._check_is_at_hand(localization)
            path = await _in(localization.in_background, localization.keeper.save)
            response.success, response.message = True, f'{added}, written to {path}'
        except KbrError as error:
            response.success, response.message = False, str(error)
        self._told('add_current', response)
        return response

    def _check_is_at_hand(self, localization: Localization) -> None:
        """Raise LocalizationError when the node was cleaned up while something was awaited."""
        if self._owner.configured() is not localization:
            raise LocalizationError('the node was configured anew meanwhile: call again')

    def _told(self, service: str, response: Trigger.Response) -> None:
        level = 'info' if response.success else 'error'
        self._owner.tell(level, f'{service}: {response.message}', 0.0)


async def _in(
    somewhere: Callable[[Callable[[], None]], None], action: Callable[[], Result]
) -> Result:
    """Have another thread do something and wait for it without holding up this one."""
    future: Future[Result] = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except Exception as error:
            future.set_exception(error)

    somewhere(act)
    result = await future
    assert result is not None
    return result
