#pragma once

#include <cstdint>

namespace tessera::observe {

/// The numbers of the fields that we use, of Perfetto's trace_packet.proto, track_descriptor.proto, track_event.proto
/// and debug_annotation.proto. A trace is a sequence of packets, so traces one after another are a trace.
namespace perfetto {

inline constexpr int kTracePacket = 1;

inline constexpr int kPacketTimestamp = 8;
inline constexpr int kPacketSequence = 10;  // who wrote it: the rank, from 1
inline constexpr int kPacketTrackEvent = 11;
inline constexpr int kPacketSequenceFlags = 13;
inline constexpr int kPacketTrackDescriptor = 60;
inline constexpr int kNewSequence = 1;  // a flag

inline constexpr int kTrackUuid = 1;
inline constexpr int kTrackName = 2;
inline constexpr int kTrackParent = 5;
inline constexpr int kTrackChildOrdering = 11;
inline constexpr int kTrackSiblingRank = 12;
inline constexpr int kExplicitOrdering = 3;

inline constexpr int kEventAnnotation = 4;
inline constexpr int kEventType = 9;
inline constexpr int kEventTrack = 11;
inline constexpr int kEventCategory = 22;
inline constexpr int kEventName = 23;
inline constexpr int kSliceBegin = 1;
inline constexpr int kSliceEnd = 2;
inline constexpr int kInstant = 3;

inline constexpr int kAnnotationInt = 4;
inline constexpr int kAnnotationDouble = 5;
inline constexpr int kAnnotationString = 6;
inline constexpr int kAnnotationName = 10;

}  // namespace perfetto

// What merge_traces() looks for.
inline constexpr const char* kClockEvent = "clock comparison";
inline constexpr const char* kClockOffset = "offset_ns";
inline constexpr const char* kClockError = "error_ns";

}  // namespace tessera::observe
