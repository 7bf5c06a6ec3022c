"""Services about maps: another map, one of several maps, the current image added to the map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast, Protocol, TypeVar

from kbr_localization.errors import KbrError, LocalizationError, MapError, RosError
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.node.localization import Localization
from kbr_localization.ros.parameters.map_files import parse_map_files
from kbr_localization.ros.parameters.settings import Settings
from kbr_localization.ros.session.answer import GivenPose
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.task import Future
from std_srvs.srv import Trigger

Result = TypeVar('Result')
BUSY = 'another map is being read: call again when it is there'


class Owner(Protocol):
    """What the services need to know of their node."""

    settings: Settings
    log: NodeLogger

    def configured(self) -> Localization:
        """Return what is at work; raises LocalizationError before there is anything."""
        ...

    def begin_from(self, given: GivenPose) -> None:
        """Start anew from a pose; raises RosError when it is none on the map."""
        ...


class MapServices:
    """
    The services `~/load_map`, `~/load_map/<name>` and `~/add_current`.

    `loading`: whether a map is being read, so that a pose given now is meant for it. `kept`: that
    pose. `globally`: whether a global start was asked for meanwhile.
    """

    def __init__(self, node: Node, owner: Owner) -> None:
        self._node, self._owner = node, owner
        self.loading = self.globally = False
        self.kept: GivenPose | None = None
        # rclpy holds the group of a callback that awaits: in the node's own, all would be deaf
        create = partial(node.create_service, callback_group=ReentrantCallbackGroup())
        create(Trigger, '~/load_map', partial(self._load_map, ''))
        for name in parse_map_files(owner.settings.config.map_files):
            create(Trigger, f'~/load_map/{name}', partial(self._load_map, name))
        create(Trigger, '~/add_current', self._add_current)

    async def _load_map(
        self, name: str, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        if self.loading:
            response.message = BUSY
        else:
            self.loading, self.globally = True, False
            try:
                await self._load(name, response)
            finally:
                self.loading = False
            self._use_kept(response.success)
        self._told('load_map', response)
        return response

    async def _load(self, name: str, response: Trigger.Response) -> None:
        try:
            localization = self._owner.configured()
            loaded = await _in(localization.in_background, partial(localization.read_map, name))
            self._check_is_at_hand(localization)
            localization.follow_map(loaded)
            use = partial(localization.use_map, loaded)
            if localization.at_work:
                # until then poses on the old map may come
                await _in(localization.session.switch_map, use)
                self._check_is_at_hand(localization)
            else:
                localization.session.switch_map(use)
                localization.do_requests()
            if name:
                self._node.set_parameters([Parameter('map_file', value=name)])
            response.success = True
            response.message = f'{loaded.name}: {len(loaded.kernel_map)} images'
        except KbrError as error:
            response.success, response.message = False, f'the map stays as it was: {error}'

    def _use_kept(self, loaded: bool) -> None:
        """Start as was asked for while the map was read, if that is in use now."""
        kept, self.kept = self.kept, None
        if kept is not None and loaded:
            try:
                self._owner.begin_from(kept)
            except RosError as error:
                self._owner.log('warning', f'initial pose refused: {error}', 0.0)
        elif kept is not None:
            text = 'initial pose dropped: it was meant for the map that could not be loaded'
            self._owner.log('warning', text, 0.0)
        elif self.globally and loaded:
            self._owner.configured().session.initialize_globally()

    async def _add_current(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        try:
            if self.loading:  # else the file would have what the map that is being read has not
                raise MapError(BUSY)
            localization = self._owner.configured()
            if not localization.at_work:
                raise LocalizationError('the node is not active: activate it first')
            added = await _in(localization.session.request, localization.add_current)
            self._check_is_at_hand(localization)
            try:
                path = await _in(localization.in_background, localization.keeper.save)
            except MapError as error:
                raise MapError(f'{added}, to be written later: {error}') from error
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
        self._owner.log(level, f'{service}: {response.message}', 0.0)


async def _in(
    somewhere: Callable[[Callable[[], None]], None], action: Callable[[], Result]
) -> Result:
    """Have another thread do something and wait for it without holding up this one."""
    future: Future[Result] = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except KbrError as error:
            future.set_exception(error)
        except Exception as error:  # a bug must not end the node
            future.set_exception(LocalizationError(f'internal error: {error!r}'))
            raise

    somewhere(act)
    return cast(Result, await future)
