"""A program for torchrun: every rank generates with an engine of its own and writes down what came out."""

import json
import os
import sys

from octavo import LLM, SamplingParams

model, folder, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
rank = os.environ["RANK"]
llm = LLM(model, tensor_parallel_size=2, distributed_executor_backend="external_launcher", max_num_seqs=4)
params = SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True, detokenize=False)
outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
tokens = [list(output.outputs[0].token_ids) for output in outputs]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"cores": sorted(os.sched_getaffinity(0)), "tokens": tokens}, file)
llm.llm_engine.shutdown()
