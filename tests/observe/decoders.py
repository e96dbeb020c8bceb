"""Reads TensorBoard's event files and Perfetto's traces from their public descriptions, with the standard library only."""

import struct
from pathlib import Path


def crc32c(data):
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The records of a TFRecord file, both checksums compared."""
    data, place = Path(path).read_bytes(), 0
    while place < len(data):
        header = data[place:place + 8]
        (length,) = struct.unpack("<Q", header)
        (header_crc,) = struct.unpack("<I", data[place + 8:place + 12])
        body = data[place + 12:place + 12 + length]
        (body_crc,) = struct.unpack("<I", data[place + 12 + length:place + 16 + length])
        assert header_crc == masked(header), "checksum of a length"
        assert body_crc == masked(body), "checksum of a record"
        yield body
        place += 16 + length


def fields(message):
    """(number, value) of each field: an int, 4 or 8 bytes, or the bytes of a string or message."""
    place = 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value & 0xFFFFFFFFFFFFFFFF

    while place < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            assert kind == 2, f"wire type {kind}"
            length = varint()
        assert place + length <= len(message), "a field is cut off"
        yield number, message[place:place + length]
        place += length


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def events(path):
    """The events of a TensorBoard file: time, step, and scalars or texts by tag."""
    for record in records(path):
        event = {"scalars": {}, "texts": {}}
        for number, value in fields(record):
            if number == 1:
                (event["time"],) = struct.unpack("<d", value)
            elif number == 2:
                event["step"] = value
            elif number == 3:
                event["version"] = value.decode()
            elif number == 5:
                for _, one in fields(value):
                    take_value(event, dict(fields(one)))
        yield event


def take_value(event, value):
    tag = value[1].decode()
    if 2 in value:
        (event["scalars"][tag],) = struct.unpack("<f", value[2])
        return
    plugin = dict(fields(dict(fields(value[9]))[1]))[1].decode()
    tensor = dict(fields(value[8]))
    assert plugin == "text" and tensor[1] == 7
    event["texts"][tag] = tensor[8].decode()


def trace_slices(path):
    """The slices of a trace: dictionaries of rank, track, name, category, start, end and annotations."""
    tracks, marks = {}, []
    for number, packet in fields(Path(path).read_bytes()):
        assert number == 1, "a trace has packets only"
        parts = dict(fields(packet))
        if 60 in parts:
            track = dict(fields(parts[60]))
            tracks[track[1]] = (track[2].decode(), track.get(5))
        if 11 in parts:
            marks.append((parts[8], parts[10] - 1, list(fields(parts[11]))))
    marks.sort(key=lambda mark: mark[0])
    return match(marks, tracks)


def match(marks, tracks):
    slices, open_slices = [], {}
    for time, rank, event in marks:
        single = dict(event)
        kind, track = single[9], single[11]
        stack = open_slices.setdefault(track, [])
        if kind == 2:
            stack.pop()["end"] = time
            continue
        name, parent = tracks[track]
        one = {"rank": rank, "track": name, "parent": parent and tracks[parent][0], "name": single[23].decode(),
               "category": single.get(22, b"").decode(), "start": time, "end": time,
               "annotations": dict(annotation(value) for number, value in event if number == 4)}
        slices.append(one)
        if kind == 1:
            stack.append(one)
    assert not any(open_slices.values()), "a slice without an end"
    return slices


def annotation(message):
    parts = dict(fields(message))
    name = parts[10].decode()
    if 4 in parts:
        return name, signed(parts[4])
    if 5 in parts:
        return name, struct.unpack("<d", parts[5])[0]
    return name, parts[6].decode()
