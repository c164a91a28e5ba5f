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
    """What all experts of a model have in common while they are read.

    gate_up: two names, or one of both stacked; interleaves: in that one, a row of one and of the other in turn
    """

    config: DecoderConfig
    parameters: Parameters
    share: ModelShare
    interleaves: bool

    def experts(
        self, experts: ExpertsConfig, router: str, routing_bias: str, gate_up: Sequence[str], down: str
    ) -> Experts:
        """Read the experts that tokens choose."""
        hidden, size, count, bias = (
            self.config.hidden_size,
            experts.intermediate_size,
            experts.count,
            experts.has_biases,
        )
        in_sizes, in_pieces = self._gate_up(gate_up, size)
        inputs = self.parameters.experts(gate_up, in_sizes, hidden, count, in_pieces, bias)
        outputs = self.parameters.experts([down], [hidden], size, count, self._hidden(), bias)
        routing = experts.routing
        if experts.has_routing_bias:
            routing = replace(routing, bias=self.parameters.vector(routing_bias, count))
        return self._experts(router, routing, inputs, outputs, bias)

    def gated_expert(self, gate: str, gate_up: Sequence[str], down: str, size: int) -> Experts:
        """Read an MLP whose output is multiplied by the sigmoid of a projection: an expert that has no rival."""
        hidden = self.config.hidden_size
        in_sizes, in_pieces = self._gate_up(gate_up, size)
        inputs = self.parameters.linear(gate_up, in_sizes, hidden, False, in_pieces).weight
        outputs = self.parameters.linear([down], [hidden], size, False, self._hidden()).weight
        return self._experts(gate, Routing(1, "sigmoid"), ExpertWeights((inputs,)), ExpertWeights((outputs,)), False)

    def _experts(
        self, router: str, routing: Routing, inputs: ExpertWeights, outputs: ExpertWeights, bias: bool
    ) -> Experts:
        hidden, share = self.config.hidden_size, self.share
        return Experts(
            router=self.parameters.linear([router], [len(inputs.weights)], hidden, bias),
            routing=routing,
            inputs=inputs,
            outputs=outputs,
            activation=self.config.activation,
            in_widths=share.widths(outputs.in_features),
            out_widths=share.widths(hidden),
            group=share.group,
        )

    def _gate_up(self, names: Sequence[str], size: int) -> tuple[list[int], list[list[range]] | None]:
        """Return the output features of each name, and this rank's, those of the gate first; None: all in order."""
        own = self.share.of(size)
        if len(names) == 2:
            return [size] * 2, pieces_of_stack(self.share, [size] * 2, [own] * 2, False)
        if self.interleaves:
            return [2 * size], [[range(2 * own.start + part, 2 * own.stop, 2) for part in (0, 1)]]
        return [2 * size], pieces_of_stack(self.share, [size] * 2, [own] * 2, True)

    def _hidden(self) -> list[list[range]] | None:
        hidden = self.config.hidden_size
        return pieces_of_stack(self.share, [hidden], [self.share.of(hidden)], False)
