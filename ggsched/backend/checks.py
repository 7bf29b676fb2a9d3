"""Checks of arguments that the contract requires, shared by plug-ins.

All of them raise ``UsageError`` before anything is enqueued (ERR-1) and cost little, for they
run with every command.
"""

from collections.abc import Sequence

from ggsched.backend.fill import check_pattern
from ggsched.backend.program import BoundNode, Operand, OperandMemory
from ggsched.backend.protocols import Buffer, Device, Event, HostMemory, Stream
from ggsched.errors import OutOfDeviceMemory, UsageError
from ggsched.topology.caps import DeviceFacts, lacking, reads_peer


def closed_error(what: str) -> UsageError:
    """Return the error for a call on something that was closed (ERR-3)."""
    return UsageError(f"the {what} is closed", hint="nothing can be called after close()")


def check_timeout(timeout_s: float, where: str) -> None:
    """Refuse NaN, which every comparison would take for a time that is not over (STR-5)."""
    if timeout_s != timeout_s:
        raise UsageError("the timeout is NaN", where=where, hint="seconds; inf waits without limit")


def out_of_memory_error(
    facts: DeviceFacts, nbytes: int, free_nbytes: int, why: str = ""
) -> OutOfDeviceMemory:
    """Return the error for memory that a device has not got (BUF-1)."""
    most = facts.max_allocation_nbytes
    return OutOfDeviceMemory(
        f"requested {nbytes} bytes, {free_nbytes} of {facts.memory_nbytes} are free",
        where=facts.name,
        why=why or f"one buffer holds at most {most} bytes",
        hint="close buffers, or place less on this device",
    )


def no_host_memory_error(facts: DeviceFacts, nbytes: int) -> OutOfDeviceMemory:
    """Return the error for host memory that the system has not got (BUF-6)."""
    return OutOfDeviceMemory(
        f"requested {nbytes} bytes of host memory",
        where=facts.name,
        why="the system gives no more",
        hint="drop host memory that is no longer used",
    )


def check_length(facts: DeviceFacts, nbytes: int) -> None:
    """Refuse memory of a negative length (BUF-1, BUF-6)."""
    if nbytes < 0:
        raise UsageError(f"a buffer of {nbytes} bytes", where=facts.name)


def foreign_program_error(where: str) -> UsageError:
    """Return the error for launching a program of another stream (LCH-5)."""
    return UsageError(
        "the program was compiled for another stream", where=f"{where} launch", why="LCH-5"
    )


def unrecorded_error(where: str) -> UsageError:
    """Return the error for waiting for an event that nobody recorded (EVT-3)."""
    return UsageError(
        "the event was not recorded",
        where=where,
        why="waiting for it would never end (EVT-3)",
        hint="record it on a stream first",
    )


def check_region(buffer: OperandMemory, offset: int, nbytes: int, command: str) -> None:
    """Refuse bytes outside a buffer (BUF-3)."""
    if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
        raise UsageError(
            f"bytes [{offset}, {offset + nbytes}) lie outside the buffer",
            where=command,
            why=f"it has {buffer.nbytes} bytes (BUF-3)",
        )


def check_host_memory(memory: object, command: str, *, written: bool = False) -> None:
    """Refuse host memory that is not a contiguous view of bytes, or not writable (CPY-5)."""
    if not isinstance(memory, memoryview) or memory.format != "B" or not memory.c_contiguous:
        raise UsageError(
            "host memory must be a contiguous memoryview of bytes",
            where=command,
            hint="pass memoryview(array).cast('B')",
        )
    if written and memory.readonly:
        raise UsageError("the host target is read-only", where=command)


def check_import(facts: DeviceFacts, memory: object) -> None:
    """Refuse to import host memory that is none, or on a device that does not import (TRU-1)."""
    if not facts.imports_host_memory:
        hint = "allocate and upload"
        raise UsageError("cannot import host memory", where=facts.name, hint=hint)
    check_host_memory(memory, f"{facts.name} import_host")


def check_own_buffer(device: Device, buffer: OperandMemory, command: str) -> None:
    """Refuse a buffer of another device."""
    if buffer.device is not device:
        raise UsageError(
            f"the buffer belongs to {buffer.device.facts.name}",
            where=f"{device.facts.name} {command}",
            hint="use copy() between devices, or a stream of the buffer's device",
        )


def check_upload(device: Device, source: HostMemory, buffer: Buffer, offset: int) -> None:
    """Check the arguments of ``stream.upload`` (BUF-3, CPY-4)."""
    check_own_buffer(device, buffer, "upload")
    check_host_memory(source, "upload")
    check_region(buffer, offset, source.nbytes, "upload")


def check_download(device: Device, buffer: Buffer, offset: int, target: HostMemory) -> None:
    """Check the arguments of ``stream.download`` (BUF-3, CPY-5)."""
    check_own_buffer(device, buffer, "download")
    check_host_memory(target, "download", written=True)
    check_region(buffer, offset, target.nbytes, "download")


def check_copy(
    device: Device, src: Buffer, src_offset: int, dst: Buffer, dst_offset: int, nbytes: int
) -> None:
    """Check the arguments of ``stream.copy`` (BUF-3, CPY-3, CPY-6)."""
    for buffer, other in ((src, dst), (dst, src)):
        if buffer.device is not device:
            if other.device is not device:
                raise UsageError(
                    "neither buffer belongs to the stream's device",
                    where=f"{device.facts.name} copy",
                    hint="enqueue the copy on a stream of one of the two devices",
                )
            if not device.copies_with(buffer.device.facts):
                raise UsageError(
                    f"no copy path to {buffer.device.facts.name}",
                    where=f"{device.facts.name} copy",
                    why="copies are never staged through the host implicitly (CPY-6)",
                    hint="download and upload instead",
                )
    check_region(src, src_offset, nbytes, "copy source")
    check_region(dst, dst_offset, nbytes, "copy destination")
    if src is dst and src_offset < dst_offset + nbytes and dst_offset < src_offset + nbytes:
        raise UsageError(
            f"source and destination overlap: {nbytes} bytes at {src_offset} and {dst_offset}",
            where="copy",
            why="CPY-3",
        )


def check_fill(device: Device, buffer: Buffer, offset: int, nbytes: int, pattern: bytes) -> None:
    """Check the arguments of ``stream.fill`` (BUF-3, FIL-3)."""
    check_own_buffer(device, buffer, "fill")
    check_region(buffer, offset, nbytes, "fill")
    check_pattern(offset, nbytes, pattern)


def check_record(device: Device, event: Event) -> None:
    """Check the argument of ``stream.record`` (EVT-1, EVT-3)."""
    if event.device is not device:
        raise UsageError(
            f"the event belongs to {event.device.facts.name}",
            where=f"{device.facts.name} record",
            hint="create the event on the stream's own device",
        )
    if event.is_recorded:
        raise UsageError(
            "the event was recorded before",
            where=f"{device.facts.name} record",
            why="an event is recorded once (EVT-3)",
            hint="create an event for each use",
        )


def check_wait(device: Device, event: Event) -> None:
    """Check the argument of ``stream.wait`` (EVT-3, EVT-4)."""
    if not event.is_recorded:
        raise UsageError(
            "the event was not recorded",
            where=f"{device.facts.name} wait",
            why="a wait for nothing would be ignored (EVT-3)",
            hint="record the event first",
        )
    other = event.device
    if other is not device and device.wait_path(other.facts) == "host":
        raise UsageError(
            f"no wait path to events of {other.facts.name}",
            where=f"{device.facts.name} wait",
            why="the declared wait path is 'host' (EVT-4)",
            hint="let the host sync the event first",
        )


def check_compile(device: Device, nodes: Sequence[BoundNode], stream: Stream) -> None:
    """Check the arguments of ``device.compile``: ops, dtypes and regions (TRU-1, BUF-3)."""
    if stream.device is not device:
        raise UsageError(
            f"the stream belongs to {stream.device.facts.name}",
            where=f"{device.facts.name} compile",
        )
    for node in nodes:
        kind = node.inputs[0].dtype.name if node.inputs else node.output.dtype.name
        if missing := lacking(device.facts, node.op, kind, node.params.get("of")):
            raise UsageError(
                f"{device.facts.name} does not support {node.op} of {kind}",
                where=node.label,
                why=f"it does not declare {missing}",
                hint="place the node on a device whose facts name it",
            )
        if node.group is not None and node.group.pattern not in device.facts.fusions:
            raise UsageError(
                f"{device.facts.name} does not declare the pattern {node.group.pattern}",
                where=node.label,
                hint="compile the nodes without a group",
            )
        for operand in node.inputs:
            _check_operand(device, operand, node.label, is_read=True)
        _check_operand(device, node.output, node.label, is_read=False)


def _check_operand(device: Device, operand: Operand, label: str, *, is_read: bool) -> None:
    if not (is_read and reads_peer(device.facts, operand.buffer.device.facts)):
        check_own_buffer(device, operand.buffer, label)  # COL-1
    check_region(operand.buffer, operand.offset, operand.nbytes, label)
    if operand.dtype.is_quantized and operand.strides:
        step = operand.strides[-1]
        if step != operand.dtype.block_nbytes:
            raise UsageError(
                f"{operand.dtype} blocks {step} bytes apart",
                where=label,
                why="quantised operands are contiguous along the last axis",
            )
