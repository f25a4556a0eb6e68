"""The adapter of WavLM, whose attention calls torch's function of all projections at once."""

import torch
from torch import Tensor
from transformers.models.wavlm.modeling_wavlm import WavLMAttention

from attention_core.hosts.adapter import Filtered
from attention_core.operators import Softmax


class FilteredWavLMAttention(Filtered, WavLMAttention):
    """WavLM's attention with a filter; the maps that it returns are means over heads of A."""

    host_class = WavLMAttention

    def torch_multi_head_self_attention(
        self, hidden_states: Tensor, attention_mask: Tensor | None, gated_position_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend to tokens (B, N, C); attention_mask (B, N) is 1 at real tokens."""
        B, N, _ = hidden_states.shape
        qkv = (project(hidden_states) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (x.view(B, N, self.num_heads, -1).transpose(1, 2) for x in qkv)
        mask = gated_position_bias.view(B, self.num_heads, N, N)
        if attention_mask is not None:
            mask = mask.masked_fill(attention_mask.ne(1)[:, None, None], -torch.inf)
        A = Softmax(q, k, mask, dropout=self.dropout if self.training else 0.0)
        y = self.out_proj(self.filter(A, v).transpose(1, 2).flatten(2))
        return y, Softmax(q, k, mask).dense().mean(1, keepdim=True).expand(B, self.num_heads, N, N)
