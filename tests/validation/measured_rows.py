"""A few rows copied by hand from their publications, so that validation needs no data file in tests."""

from __future__ import annotations

import csv
import io

from scaleacross.validation.runs import Run, parse_runs

HEAD = (
    "id,source,framework,model,arch,layers,hidden,ffn,gated,heads,kv_heads,head_dim,vocab,attn,seq,"
    "gpu,n_gpus,tp,cp,pp,vpp,dp,sp,mbs,gbs,precision,recompute,step_time_s"
)
MODELS = {
    "gpt3_175b": "96,12288,49152,0,96,96,128,51200,mha,2048",
    "gpt_18b": "40,6144,24576,0,48,48,128,50257,mha,2048",
    "nemotron4_15b": "32,6144,24576,0,48,8,128,256000,gqa,4096",
    "llama3_70b": "80,8192,28672,1,64,8,128,128256,gqa,8192",
}
# arXiv 2205.05198 table 5 (full and selective recomputation of GPT-3 175B on 64 A100), the H100 results of
# NVIDIA/dgxc-benchmarking v25.04.02 (Nemotron-4 15B and Llama 3 70B), and two configurations of VIA-Research/vTrain.
ROWS = (
    ("k1,Korthikanti,Megatron-LM 2022", "gpt3_175b", "A100-80GB,64,8,1,8,3,1,0,1,64,fp16,full,18.13"),
    ("k2,Korthikanti,Megatron-LM 2022", "gpt3_175b", "A100-80GB,64,8,1,8,3,1,1,1,64,fp16,selective,13.75"),
    ("n1,dgxc,NeMo Megatron-Core", "nemotron4_15b", "H100-80GB,16,2,1,1,,8,1,2,64,bf16,none,2.66"),
    ("n2,dgxc,NeMo Megatron-Core", "nemotron4_15b", "H100-80GB,16,2,1,1,,8,1,2,64,fp8,none,1.98"),
    ("l1,dgxc,NeMo Megatron-Core", "llama3_70b", "H100-80GB,64,4,2,4,5,2,1,1,128,bf16,none,14.61"),
    ("v1,vTrain,Megatron-DeepSpeed", "gpt_18b", "A100-80GB,256,8,1,1,,32,0,8,1024,fp16,full,9.6036"),
    ("v2,vTrain,Megatron-DeepSpeed", "gpt_18b", "A100-80GB,256,8,1,8,,4,0,32,1024,fp16,full,16.2414"),
)
TEXT = "\n".join((HEAD, *(f"{start},{model},dense,{MODELS[model]},{end}" for start, model, end in ROWS))) + "\n"


def runs(text: str = TEXT) -> list[Run]:
    """Rows of a CSV text."""
    return list(parse_runs(csv.DictReader(io.StringIO(text)), "golden"))


def run(id: str) -> Run:
    """One of these rows."""
    return next(row for row in runs() if row.id == id)
