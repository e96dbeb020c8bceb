"""with_their_readers.py FOLDER: compares what TensorBoard and Perfetto find in the files of observe_sample_run."""

import sys
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def check_tensorboard(folder):
    board = EventAccumulator(str(folder))
    board.Reload()
    tags = board.Tags()
    expected = {"train/loss", "train/learning_rate", "validation/loss", "speed/step_seconds",
                "speed/tokens_per_second", "memory/resident_megabytes", "memory/peak_megabytes"}
    assert set(tags["scalars"]) == expected, tags
    losses = board.Scalars("train/loss")
    assert [one.step for one in losses] == list(range(1, 21))
    assert all(abs(one.value - 4 / one.step) < 1e-6 for one in losses)
    (config,) = board.Tensors("config")
    assert config.tensor_proto.string_val == [b"    # a run\n    lr = 0.5\n    "]
    assert board.SummaryMetadata("config").plugin_data.plugin_name == "text"
    print(f"TensorBoard reads {len(losses)} steps of {len(tags['scalars'])} scalars, and the config")


def check_perfetto(path):
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet
              if packet.HasField("track_descriptor")}
    counts = {}
    for packet in trace.packet:
        # Fields that the description does not know would be kept aside.
        assert len(UnknownFieldSet(packet)) == 0, packet
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert len(UnknownFieldSet(event)) == 0 and event.track_uuid in tracks, packet
        kind = TrackEvent.Type.Name(event.type)
        counts[kind] = counts.get(kind, 0) + 1
    assert counts == {"TYPE_SLICE_BEGIN": 120, "TYPE_SLICE_END": 120, "TYPE_INSTANT": 2}, counts
    roots = [track for track in tracks.values() if not track.parent_uuid]
    assert [root.child_ordering for root in roots] == [TrackDescriptor.EXPLICIT] * 2
    assert all(track.parent_uuid in tracks for track in tracks.values() if track.parent_uuid)
    begun = [packet.track_event for packet in trace.packet if packet.track_event.name == "all_reduce"]
    notes = {note.name: note for note in begun[0].debug_annotations}
    assert notes["group"].string_value == "world" and notes["returned_after_ns"].int_value == 600
    print(f"Perfetto's description fits all {len(trace.packet)} packets: {len(tracks)} tracks, {counts}")


def check_trace_processor(path):
    """Perfetto's own engine, which its package fetches from elsewhere when it can."""
    try:
        from perfetto.trace_processor import TraceProcessor
        processor = TraceProcessor(trace=str(path))
    except Exception as error:  # noqa: BLE001: whatever keeps it from being fetched
        print(f"trace_processor is not to be had here: {type(error).__name__}")
        return
    (row,) = processor.query("select count(*) as n, count(distinct track_id) as tracks from slice where dur >= 0")
    (bad,) = processor.query("select coalesce(sum(value), 0) as n from stats where severity = 'error'")
    processor.close()
    assert row.n == 122 and bad.n == 0, (row.n, bad.n)
    print(f"trace_processor finds {row.n} slices on {row.tracks} tracks, and no errors")


def main():
    folder = Path(sys.argv[1])
    check_tensorboard(folder / "board")
    check_perfetto(folder / "trace.pftrace")
    check_trace_processor(folder / "trace.pftrace")


if __name__ == "__main__":
    main()
