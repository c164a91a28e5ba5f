"""Reads a layer's mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.layers.moe import Experts
from octavo.layers.parameters import Parameters
from octavo.models.decoder_config import DecoderConfig, ExpertsConfig
from octavo.models.sharing import ModelShare, pieces_of_stack
from octavo.ops.interface import ExpertWeights, Routing


@dataclass(frozen=True, slots=True)
class ExpertLoading:
    """What all experts of a model have in common while they are read. gate_up: two names, or one of both stacked."""

    config: DecoderConfig
    parameters: Parameters
    share: ModelShare

    def experts(
        self, experts: ExpertsConfig, router: str, routing_bias: str, gate_up: Sequence[str], down: str
    ) -> Experts:
        """Read the experts that tokens choose."""
        hidden, size, count = self.config.hidden_size, experts.intermediate_size, experts.count
        inputs = self.parameters.experts(
            gate_up, self._sizes(gate_up, size), hidden, count, self._inputs(gate_up, size)
        )
        outputs = self.parameters.experts([down], [hidden], size, count, self._outputs())
        routing = experts.routing
        if experts.has_routing_bias:
            routing = replace(routing, bias=self.parameters.vector(routing_bias, count))
        return self._experts(router, routing, inputs, outputs)

    def gated_expert(self, gate: str, gate_up: Sequence[str], down: str, size: int) -> Experts:
        """Read an MLP whose output is multiplied by the sigmoid of a projection: an expert that has no rival."""
        hidden = self.config.hidden_size
        inputs, outputs = (
            self.parameters.linear(gate_up, self._sizes(gate_up, size), hidden, False, self._inputs(gate_up, size)),
            self.parameters.linear([down], [hidden], size, False, self._outputs()),
        )
        weights = ExpertWeights((inputs.weight,)), ExpertWeights((outputs.weight,))
        return self._experts(gate, Routing(1, "sigmoid"), *weights)

    def _experts(self, router: str, routing: Routing, inputs: ExpertWeights, outputs: ExpertWeights) -> Experts:
        hidden, share = self.config.hidden_size, self.share
        return Experts(
            router=self.parameters.linear([router], [len(inputs.weights)], hidden, bias=False),
            routing=routing,
            inputs=inputs,
            outputs=outputs,
            activation=self.config.activation,
            in_widths=share.widths(outputs.in_features),
            out_widths=share.widths(hidden),
            group=share.group,
        )

    def _sizes(self, gate_up: Sequence[str], size: int) -> list[int]:
        return [2 * size // len(gate_up)] * len(gate_up)

    def _inputs(self, gate_up: Sequence[str], size: int) -> list[list[range]] | None:
        """Return a rank's features of gate and up."""
        return pieces_of_stack(self.share, [size] * 2, [self.share.of(size)] * 2, len(gate_up) == 1)

    def _outputs(self) -> list[list[range]] | None:
        hidden = self.config.hidden_size
        return pieces_of_stack(self.share, [hidden], [self.share.of(hidden)], False)
