"""A connection to a Ray cluster, and what an engine has there: a placement group, and an actor in each bundle of it.

`ray` comes with octavo[ray].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import ConfigError

_PLACEMENT_TIMEOUT_S = 60.0


class RayCluster:
    """The cluster of RAY_ADDRESS or of this machine, or one that is started here and ends with this object.

    ray: the module; nodes: of each bundle, Ray's name of its machine, this machine first; bundles of one follow each
    other
    """

    def __init__(self, option: str) -> None:
        """Raises ConfigError where Ray is not installed. option: what asks for it, for the message"""
        try:
            import ray
            import ray.util
        except ImportError as error:
            raise ConfigError(f"{option} needs Ray: pip install 'octavo[ray]'") from error
        self.ray: Any = ray
        self.nodes: list[str] = []
        self._actors: list[Any] = []
        self._group: Any = None
        self._bundles: list[int] = []  # as `nodes` has them
        self._is_closed = False
        self._is_own = not ray.is_initialized()
        if self._is_own:
            ray.init(log_to_driver=True)
        self._session = self._present_session()

    @property
    def is_connected(self) -> bool:
        """Whether Ray's session is still the one in which all this was made: a program may end it, and begin another.

        Outside of it, Ray's calls would start a cluster.
        """
        return self.ray.is_initialized() and self._present_session() == self._session

    def _present_session(self) -> tuple[str, str]:
        context = self.ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()

    @property
    def this_node(self) -> str:
        name: str = self.ray.get_runtime_context().get_node_id()
        return name

    @property
    def this_address(self) -> str:
        """This machine's address, as Ray has it."""
        address: str = self.ray.util.get_node_ip_address()
        return address

    def reserve(self, count: int, cpus: int, strategy: str, what: str, way_out: str, num_here: int = 0) -> None:
        """Reserve a bundle of CPUs for each of `count` actors; raises ConfigError with what there is.

        strategy: Ray's name of it; num_here: so many of them on this machine
        """
        ray, wanted = self.ray, count * cpus
        total = int(ray.cluster_resources().get("CPU", 0))
        needs = f"{count} {what} need {wanted} CPUs of the Ray cluster"
        if total < wanted:
            raise ConfigError(f"{needs}, which has {total}; add machines with `ray start`, or {way_out}")
        here = {f"node:{self.this_address}": 0.001}
        bundles = [{"CPU": cpus, **(here if index < num_here else {})} for index in range(count)]
        self._group = ray.util.placement_group(bundles, strategy=strategy)
        if not self._group.wait(_PLACEMENT_TIMEOUT_S):
            free = int(ray.available_resources().get("CPU", 0))
            raise ConfigError(
                f"{needs}, but {free} of {total} are free after {_PLACEMENT_TIMEOUT_S:g} s; stop what uses them"
            )
        node_of: Mapping[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        self._bundles = sorted(range(count), key=lambda i: (node_of[i] != self.this_node, node_of[i], i))
        self.nodes = [node_of[bundle] for bundle in self._bundles]

    def create_actor(self, actor_class: type[Any], place: int, args: Sequence[Any] = (), **options: Any) -> Any:
        """Start an actor in the bundle of `nodes[place]`; it may take a while until it answers. options: Ray's"""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self._bundles[place])
        actor = self.ray.remote(scheduling_strategy=strategy, **options)(actor_class).remote(*args)
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End the actors and give back what was reserved; idempotent."""
        if self._is_closed or not self.is_connected:
            return
        self._is_closed = True
        for actor in self._actors:
            self.ray.kill(actor)
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
        if self._is_own:
            self.ray.shutdown()
