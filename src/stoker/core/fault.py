"""Fatal errors of CUDA, which under MPS are reported to every client of a GPU, whoever made them."""

from __future__ import annotations

from stoker.core.logtext import last_match, read_log_text, sentence

_SAID = (
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
    # After a colon or as NCCL quotes it: not what a program compares with.
    rf"(?:(?<=:)|(?<=failure')|(?<=\d'))(?:{_SAID})|{_OF_MPS}"
    # After a colon, as the end of `results in`, or after the number of the error.
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
    """The line with the last such error of a log; None where there is none."""
    log = read_log_text(text)
    found = last_match(_FAULT, log.packed, _MARKS)
    return sentence(log, found.start(), found.end()) if found else None
