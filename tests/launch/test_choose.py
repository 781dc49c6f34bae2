"""Every case of `choose`: none, fewer or enough GPUs; each device and backend; torch with and without NCCL."""

import pytest

from tp_teach.launch.devices import Choice, choose

# (gpus, ranks) of each case.
COUNTS = {
    "no GPU": [(0, 1), (0, 4)],
    "fewer GPUs": [(1, 2), (1, 8), (3, 4)],
    "enough GPUs": [(1, 1), (4, 4), (8, 1), (8, 3)],
}
# device, backend, then what happens with no GPU, with fewer GPUs than ranks, and with enough.
WITH_NCCL = """
    -    -     cpu      cpu      nccl
    -    gloo  cpu      cpu      cpu
    -    nccl  refused  refused  nccl
    cpu  -     cpu      cpu      cpu
    cpu  gloo  cpu      cpu      cpu
    cpu  nccl  refused  refused  refused
    cuda -     refused  shared   nccl
    cuda gloo  refused  shared   own
    cuda nccl  refused  refused  nccl
"""
WITHOUT_NCCL = """
    -    -     cpu      cpu      cpu
    -    gloo  cpu      cpu      cpu
    -    nccl  refused  refused  refused
    cpu  -     cpu      cpu      cpu
    cpu  gloo  cpu      cpu      cpu
    cpu  nccl  refused  refused  refused
    cuda -     refused  shared   own
    cuda gloo  refused  shared   own
    cuda nccl  refused  refused  refused
"""


def cases():
    for nccl, table in ((True, WITH_NCCL), (False, WITHOUT_NCCL)):
        for line in table.strip().splitlines():
            device, backend, *outcomes = (None if word == "-" else word for word in line.split())
            for counts, outcome in zip(COUNTS.values(), outcomes, strict=True):
                for gpus, ranks in counts:
                    yield gpus, ranks, device, backend, nccl, outcome


@pytest.mark.parametrize("gpus, ranks, device, backend, nccl, outcome", list(cases()))
def test_every_case(gpus, ranks, device, backend, nccl, outcome):
    if outcome == "refused":
        with pytest.raises(ValueError):
            choose(gpus, ranks, device, backend, nccl=nccl)
        return
    choice = choose(gpus, ranks, device, backend, nccl=nccl)
    own = tuple(f"cuda:{rank}" for rank in range(ranks))
    expected = {
        "cpu": ("gloo", ("cpu",) * ranks),
        "nccl": ("nccl", own),
        "own": ("gloo", own),
        "shared": ("gloo", tuple(f"cuda:{rank % max(1, gpus)}" for rank in range(ranks))),
    }
    assert (choice.backend, choice.devices) == expected[outcome]
    assert "\n" not in choice.reason


@pytest.mark.parametrize(
    "request_, reason",
    [
        ((0, 4), "4 ranks on the CPU with Gloo: torch sees no GPU here"),
        ((0, 1), "1 rank on the CPU with Gloo: torch sees no GPU here"),
        ((2, 4), "4 ranks on the CPU with Gloo: torch sees 2 GPUs, fewer than the ranks"),
        ((4, 4, "cpu"), "4 ranks on the CPU with Gloo, as asked"),
        ((4, 4, None, "gloo"), "4 ranks on the CPU with Gloo, as asked"),
        ((4, 4), "4 ranks on 4 GPUs with NCCL"),
        ((1, 1), "1 rank on 1 GPU with NCCL"),
        ((4, 4, "cuda", "gloo"), "4 ranks on 4 GPUs with Gloo"),
        ((1, 4, "cuda"), "4 ranks share 1 GPU with Gloo: real memory, meaningless speed"),
    ],
)
def test_the_reason_says_why(request_, reason):
    assert choose(*request_).reason == reason


def test_the_reason_without_nccl():
    assert choose(2, 2, nccl=False).reason == "2 ranks on the CPU with Gloo: this build of torch has no NCCL"


@pytest.mark.parametrize(
    "request_, sentence",
    [
        ((2, 2, "tpu"), "device='tpu' is not known; use 'cpu', 'cuda' or leave it out"),
        ((2, 2, "cuda:0"), "device='cuda:0' is not known"),
        ((2, 2, None, "mpi"), "backend='mpi' is not known; use 'gloo', 'nccl' or leave it out"),
        ((0, 2, "cuda"), "use device='cpu'"),
        ((0, 2, None, "nccl"), "2 ranks, and torch sees 0 GPUs; use backend='gloo'"),
        ((2, 4, None, "nccl"), "4 ranks, and torch sees 2 GPUs; use at most 2 ranks or backend='gloo'"),
        ((2, 2, "cpu", "nccl"), "cannot work with device='cpu'; use backend='gloo'"),
    ],
)
def test_a_refusal_names_what_would_work(request_, sentence):
    with pytest.raises(ValueError, match="^(device|backend)=") as refused:
        choose(*request_)
    assert sentence in str(refused.value)


def test_the_same_request_gets_the_same_choice():
    assert choose(4, 2) == choose(4, 2) == Choice("nccl", ("cuda:0", "cuda:1"), "2 ranks on 2 GPUs with NCCL")
