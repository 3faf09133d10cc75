"""Recognise out-of-memory errors and CUDA faults in log text."""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.core.logs.text import SearchText, last_match, pattern, position, read_log_text, sentence

Framework = Literal[
    "torch",
    "jax",
    "tensorflow",
    "cupy",
    "cublas",
    "cudnn",
    "nccl",
    "cuda",
    "vllm",
    "sglang",
    "bitsandbytes",
    "xgboost",
    "rmm",
    "thrust",
    "onnxruntime",
    "tensorrt",
    "paddle",
    "lightgbm",
    "julia",
]
_MARGIN = 1.15
_GROWTH = 1.5
_STEP = 64 * 2**20
_WINDOW = 6000
"""Characters of a message, without blanks: torch lists every process on the GPU, and MPS allows 48."""


class OutOfMemory(Struct, frozen=True):
    """A failed allocation; None if the message does not say."""

    framework: Framework
    wanted: int | None
    """Bytes it tried to allocate."""
    own: int | None
    """Bytes that the process itself held."""
    total: int | None
    free: int | None
    co_tenants: tuple[tuple[int, int], ...]
    """Other processes on the GPU, as (process id, bytes)."""
    capped: bool
    """It reached a limit that was set for it, independent of its co-tenants."""
    text: str
    """The message, shortened for a screen."""


def find_oom(text: str) -> OutOfMemory | None:
    """The last out-of-memory message of a log; None if there is none, or if the program survived it."""
    log = read_log_text(text)
    matches = [(match, form) for form in _FORMS if (match := last_match(form.expression, log.packed, form.marks))]
    if not matches:
        return None
    match, form = max(matches, key=lambda pair: pair[0].end())  # of equals the first form, which is more specific
    return None if _survived(log, match.end()) else _oom(log, match, form)


def is_own_fault(oom: OutOfMemory, reserved: int | None, seen_peak: int | None = None) -> bool:
    """Whether the job needed more than was reserved for it, rather than its co-tenants using too much.

    `reserved` None is the whole GPU. The measured peak counts if the message has no number, or only that of one
    process of several.
    """
    held = max((size for size in (oom.own, seen_peak) if size is not None), default=None)
    if reserved is None or oom.capped or held is None:
        return True
    return held + (oom.wanted or 0) > reserved


def floor_after(oom: OutOfMemory, reserved: int | None, seen_peak: int | None) -> int:
    """Bytes to reserve for the next attempt, after an out-of-memory error of the job's own making."""
    held = oom.own if oom.own is not None else seen_peak or 0
    needed = int((held + (oom.wanted or 0)) * _MARGIN)
    size = max(needed, int((reserved or 0) * _GROWTH), seen_peak or 0)
    return -(-size // _STEP) * _STEP


class _Form(NamedTuple):
    """A form of the message. All expressions match text without blanks."""

    framework: Framework
    marks: tuple[str, ...]
    """Words of which every such message has one; searching for them is cheap."""
    expression: str


_SIZE = r"(\d[\d,]{0,20}(?:\.\d{1,6})?)([KMGTP]i?B?|bytes|B)"
_OOM = "outofmemory"
_GPU = "(?:CUDA|HIP|XPU)"
_SPOKEN = r"""(?:(?<!["'`])|(?<=[(:]["']))"""
"""Not a quoted text that a program compares with, but that of an exception, also as its repr or in JSON."""
_EXHAUSTED = "(?:RESOURCE_EXHAUSTED|Resourceexhausted|ResourceExhaustedError):"

_FORMS = (
    _Form("torch", (_OOM,), rf"{_GPU}outofmemory\.Triedtoallocate{_SIZE}"),
    _Form("torch", (_OOM,), rf"(?<=Error:){_GPU}outofmemory"),
    _Form("torch", ("Allocationondevice",), r"Allocationondevice\d{0,3}wouldexceedallowedmemory"),
    _Form("torch", ("Allocationondevice",), r"OutOfMemoryError:Allocationondevice"),
    _Form("jax", ("Outofmemory",), rf"{_EXHAUSTED}:?Outofmemory(?:whiletryingtoallocate|allocating)"),
    _Form("jax", ("allocaterequest",), rf"{_EXHAUSTED}:?Failedtoallocaterequestfor{_SIZE}"),
    _Form(
        "tensorflow",
        ("OOMwhen",),
        # The same message with a CPU device is about host memory.
        r"OOMwhenallocatingtensorwithshape\[[\d,]{0,120}\](?!andtype\w{1,20}on/[\w:/]{0,60}?(?:device:CPU|/cpu):)",
    ),
    _Form("tensorflow", ("allocatememory",), rf"{_EXHAUSTED}(?:\{{\{{[^}}]{{0,300}}\}}\}})?failedtoallocatememory"),
    _Form("tensorflow", ("Dsttensor",), r"Dsttensorisnotinitialized\."),
    _Form("cupy", ("Outofmemory",), rf"Outofmemoryallocating{_SIZE}\(allocatedsofar:{_SIZE}"),
    _Form("cupy", (_OOM,), rf"outofmemorytoallocate{_SIZE}\(total{_SIZE}"),
    _Form("cupy", ("cudaErrorMemory",), r"CUDARuntimeError:cudaErrorMemoryAllocation(?::outofmemory)?"),
    _Form("cublas", ("CUBLAS_STATUS",), r"(?<=:)CUBLAS_STATUS_ALLOC_FAILED"),
    _Form("cublas", ("theresource",), r"(?i:cublas)[^'\"]{0,80}?:theresourceallocationfailed"),
    _Form("cudnn", ("CUDNN_STATUS",), r"(?<=:)CUDNN_STATUS_(?:ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION)_FAILED"),
    _Form("nccl", (_OOM,), r"Cudafailure:?2?'outofmemory'"),
    _Form("nccl", ("FailedtoCUDA",), rf"FailedtoCUDA[a-z]{{1,20}}{_SIZE}"),
    _Form(
        "cuda",
        (_OOM,),
        rf"{_SPOKEN}(?i:cuda|hip)(?:driver|runtime)?error(?:\(?2\)?)?(?:at[\w./:-]{{1,120}}?)?:outofmemory",
    ),
    _Form(
        "cuda",
        (_OOM,),
        r"(?:CUDAfailedwitherror|CUDAfailure2:|(?:cudaMalloc|cuMemAlloc)\w{0,8}failed:|TritonError\[CUDA\]:|GPUassert:|error=2:)"
        "outofmemory",
    ),
    _Form("cuda", ("cudaErrorMemory",), r"cudaErrorMemoryAllocation:?outofmemory|\d\(cudaErrorMemoryAllocation\)"),
    _Form(
        "cuda",
        ("ERROR_OUT_OF",),
        rf"(?:failedtoallocate{_SIZE}\(\d{{1,20}}bytes\))?(?:fromdevice:(?:RESOURCE_EXHAUSTED::?)?|resultsin|:|\d\()"
        r"CUDA_ERROR_OUT_OF_MEMORY(?::outofmemory)?",
    ),
    _Form("cuda", ("_ALLOC_FAILED",), r"(?<=:)(?:CU(?:SOLVER|SPARSE)_STATUS|CUFFT)_ALLOC_FAILED"),
    _Form(
        "vllm",
        ("onstartupisless",),
        r"Freememoryondevice(?:cuda:\d{1,3})?\([\d.]{1,12}/[\d.]{1,12}GiB\)onstartupislessthandesiredGPUmemoryutilization",
    ),
    _Form("vllm", ("Noavailablememory",), r"(?<=Error:)Noavailablememoryforthecacheblocks"),
    _Form("vllm", ("KVcacheisneeded",), rf"{_SIZE}KVcacheisneeded,whichislargerthantheavailableKVcachememory"),
    _Form("sglang", ("--mem-fraction",), r"(?<=Error:)Notenoughmemory\.Pleasetrytoincrease--mem-fraction-static"),
    _Form("bitsandbytes", (_OOM,), r"Erroroutofmemoryatline\d{1,6}infile"),
    _Form("xgboost", ("Memoryallocation",), r"Memoryallocationerroronworker\d{1,6}:"),
    _Form("rmm", ("Maximumpool",), r"RMMfailureat:[^'\"]{1,300}?:\d{1,6}:Maximumpoolsizeexceeded"),
    _Form("thrust", (_OOM,), r"parallel_forfailed:outofmemory"),
    _Form(
        "onnxruntime",
        ("Failedtoallocate", "smallerthan"),
        r"BFCArena::\w{1,40}(?:\([^()]{0,200}\))?:?"
        r"(?:Failedtoallocatememoryforrequestedbuffer|Availablememoryof\d{1,20}issmallerthanrequestedbytes)",
    ),
    # TensorRT's builder survives it and skips the tactic.
    _Form("tensorrt", (_OOM,), r"Cuda(?:Runtime|Errorin[\w:]{1,120}:2)\(outofmemory\)(?!.{0,600}?Skippingtactic)"),
    _Form("paddle", ("OutofmemoryerroronGPU",), rf"OutofmemoryerroronGPU\d{{1,3}}\.Cannotallocate{_SIZE}memory"),
    _Form("lightgbm", (_OOM,), r"(?:\[Fatal\]|Error:)\[CUDA\]outofmemory"),
    _Form("julia", ("OutofGPUmemory",), rf"OutofGPUmemorytryingtoallocate{_SIZE}"),
)

_REPORT = (
    r"(?i)\b(?:epoch|step|iter|iteration|batch|update|episode|trial|round|loss|acc|accuracy)\b\W{1,4}\d[\d.e+-]{0,20}"
    r"|\d{1,3}%\|[^|\n]{0,300}\| ?\d{1,12}/\d{1,12}"
)
"""Matches what a training program writes as it proceeds: counts, losses and bars."""
_SUMMARY = ("wandb:", "COMET ")
"""Lines of experiment trackers, which repeat the last values when a program dies."""
_SIGNS_OF_LIFE = 2
"""Reports of one form: a program that dies may also print its last step and its last loss."""
_STATE = r"\d[\d.e+-]*|\|[^|]*\|"
"""Matches what differs between reports of one form."""

_WANTED = (
    rf"(?:[Tt]r(?:ied|ying)toallocate|Requested:|emoryallocating|emorytoallocate|requestfor|failedtoallocate"
    rf"|FailedtoCUDA[a-z]{{1,20}}|Cannotallocate|desiredGPUmemoryutilization\([\d.]{{1,8}},){_SIZE}"
)

_TOTAL = (
    rf"(?:totalcapaci?tyof|Devicelimit:|memoryondevice(?:cuda:\d{{1,3}})?\([\d.]{{1,12}}/){_SIZE}|{_SIZE}totalcapacity"
)
_FREE = rf"(?:ofwhich|Free\(accordingtoCUDA\):){_SIZE}|{_SIZE}free[;)]"
_OWN = rf"(?:thisprocesshas|Currentlyallocated:|allocatedsofar:){_SIZE}|{_SIZE}reservedintotalbyPyTorch"
_ALLOCATED = rf"Oftheallocatedmemory{_SIZE}|{_SIZE}alreadyallocated"
_SPARE = rf"and{_SIZE}isreservedbyPyTorch|{_SIZE}cached"
_OLD_CUPY = rf"outofmemorytoallocate{_SIZE}\(total{_SIZE}"
_LIMIT = rf"(?:memoryfraction\)|limitsetto):?{_SIZE}|{_SIZE}allowed;"
_PROCESS = rf"Process(\d{{1,10}})has{_SIZE}memoryinuse"
_IN_USE = r"InUse:(\d{1,18})MaxInUse:"
_TENSOR = r"withshape\[([\d,]{1,120})\]andtype(\w{1,12}?)on/"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_WIDTHS = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "int64": 8, "int32": 4, "uint8": 1, "int8": 1, "bool": 1}


def _survived(log: SearchText, end: int) -> bool:
    """Whether the program reported new progress after the message that ends at this place of the packed text."""
    place = position(log.lines, end)
    fresh = _reports(log.lines[place:]) - _reports(log.lines[:place])
    forms = Counter(pattern(_STATE).sub("", " ".join(report)) for report in fresh)
    return max(forms.values(), default=0) >= _SIGNS_OF_LIFE


def _reports(lines: str) -> set[tuple[str, ...]]:
    """The states of progress in these lines: a bar that is drawn again when its program dies adds none."""
    reports = (tuple(pattern(_REPORT).findall(line)) for line in lines.splitlines() if not line.startswith(_SUMMARY))
    return set(filter(None, reports))


def _oom(log: SearchText, match: re.Match[str], form: _Form) -> OutOfMemory:
    text = log.packed[match.start() : match.start() + _WINDOW]
    own, co_tenants = _shares(text)
    wanted = _wanted(text)
    return OutOfMemory(
        framework=form.framework,
        wanted=wanted,
        own=own if own is not None else _in_use(log.packed[: match.start()], form.framework),
        total=_size(_TOTAL, text),
        free=_size(_FREE, text),
        co_tenants=co_tenants,
        capped=_is_capped(text, (own or 0) + (wanted or 0)),
        text=sentence(log, match.start(), match.end()),
    )


def _wanted(text: str) -> int | None:
    tensor = pattern(_TENSOR).search(text)
    if tensor is None:
        return _size(_WANTED, text)
    width = _WIDTHS.get(tensor[2])
    return width * prod(int(side) for side in tensor[1].split(",") if side) if width else None


def _shares(text: str) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """Bytes of the process, and of others."""
    others = [(int(match[1]), _bytes(match[2], match[3])) for match in pattern(_PROCESS).finditer(text)]
    own = _size(_OWN, text)
    if own is not None:
        return own, tuple(others)
    allocated = _size(_ALLOCATED, text)
    if allocated is None:
        return _old_cupy(text), tuple(others)
    own = allocated + (_size(_SPARE, text) or 0)
    return _in_a_container(own, others)


def _in_a_container(held: int, others: list[tuple[int, int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """In a container torch does not know its own process: it is the one with slightly more than the allocator holds."""
    near = [process for process in others if held <= process[1] <= held + 2 * 2**30]
    itself = min(near, key=lambda process: process[1], default=None)
    return itself[1] if itself else held, tuple(process for process in others if process != itself)


def _old_cupy(text: str) -> int | None:
    """Up to CuPy 6 the total includes the failed allocation."""
    match = pattern(_OLD_CUPY).match(text)
    return max(0, _bytes(match[3], match[4]) - _bytes(match[1], match[2])) if match else None


def _in_use(before: str, framework: Framework) -> int | None:
    """Bytes that the allocator of TensorFlow or JAX held, printed shortly before the exception."""
    match = last_match(_IN_USE, before) if framework in ("tensorflow", "jax") else None
    return int(match[1]) if match else None


def _is_capped(text: str, needed: int) -> bool:
    limit = _size(_LIMIT, text)
    return "preemptivelyrejected" in text or (limit is not None and needed > limit)


def _size(expression: str, text: str) -> int | None:
    match = pattern(expression).search(text)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> int:
    plain, factor = number.replace(",", ""), _UNITS[unit[0].lower()]
    return int(plain) * factor if plain.isdecimal() else int(float(plain) * factor)


_MESSAGES = (
    "anillegalmemoryaccesswasencountered|anillegalinstructionwasencountered|device-sideasserttriggered"
    "|unspecifiedlaunchfailure|misalignedaddress|invalidprogramcounter|hardwarestackerror"
    "|operationnotsupportedonglobal/sharedaddressspace|thelaunchtimedoutandwasterminated"
    "|uncorrectable(?:ECC|NVLink)errorencountered"
)

_OF_MPS = (
    "MPSclientfailedtoconnecttotheMPScontroldaemon|theremoteproceduralcallbetweentheMPSserverandtheMPSclientfailed"
    "|MPSserverisnotready|thehardwareresourcesrequiredto(?:createMPSclient|(?:support)?deviceconnections)havebeenexhausted"
    "|theMPSclienthasbeenterminatedbytheserver"
)

_NAMED = (
    "CUDA_ERROR_(?:ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|ASSERT|LAUNCH_FAILED|LAUNCH_TIMEOUT|MISALIGNED_ADDRESS|INVALID_PC"
    "|INVALID_ADDRESS_SPACE|HARDWARE_STACK_ERROR|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|CONTAINED|MPS_)"
    "|cudaError(?:IllegalAddress|IllegalInstruction|Assert|LaunchFailure|LaunchTimeout|MisalignedAddress|InvalidPc"
    "|InvalidAddressSpace|HardwareStackError|ECCUncorrectable|NvlinkUncorrectable|Contained|Mps)"
)

_FAULT = (
    # After a colon or as NCCL quotes it, but not as a text that a program compares with.
    rf"(?:(?<=:)|(?<=failure')|(?<=\d'))(?:{_MESSAGES})|{_OF_MPS}"
    # After a colon, after `results in`, or after the number of the error.
    rf"|(?:(?<=:)|(?<=resultsin)|(?<=\d\())(?:{_NAMED})"
)

_MARKS = (
    "encountered",
    "assert",
    "launch",
    "address",
    "counter",
    "stackerror",
    "connections",
    "MPS",
    "CUDA_ERROR_",
    "cudaError",
)


def find_fault(text: str) -> str | None:
    """The line with the last CUDA or MPS error of a log; None if there is none."""
    log = read_log_text(text)
    match = last_match(_FAULT, log.packed, _MARKS)
    return sentence(log, match.start(), match.end()) if match else None
