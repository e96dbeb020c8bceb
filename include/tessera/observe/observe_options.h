#pragma once

#include <tessera/core/options.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera {

/// What there is to see of a training run. Rank 0 shows and writes everything but the trace, which each rank writes.
/// By default there is only the progress line.
struct ObserveOptions {
  /// "auto": one line, rewritten in place, on a terminal, and nothing elsewhere. "plain": a line of its own every
  /// `plain_every`, for logs. "off": nothing.
  TESSERA_ARG(std::string, progress) = "auto";
  /// How often a plain line appears. Lower it for short runs.
  TESSERA_ARG(std::chrono::milliseconds, plain_every) = std::chrono::seconds(10);
  /// A file that gets one JSON object a step, appended to what is there. Empty: none.
  TESSERA_ARG(std::string, json) = "";
  /// A folder for TensorBoard's event files. Empty: none.
  TESSERA_ARG(std::string, tensorboard) = "";
  /// Where Prometheus finds the figures: a port of the loopback address, as "9464", or an address and a port, as
  /// "10.0.0.5:9464" or "[::1]:9464". Port 0 takes a free one. Whoever reaches the address may read. Empty: nowhere.
  TESSERA_ARG(std::string, prometheus) = "";
  /// The trace of rank R goes to the file `<this>.rankR.pftrace`. Empty: none.
  TESSERA_ARG(std::string, trace) = "";
  /// How many steps before the trace begins: the first ones are not like the others.
  TESSERA_ARG(std::int64_t, trace_skip) = 0;
  /// How many steps the trace holds; 0: all of them. A step takes some 100 bytes a call and a span.
  TESSERA_ARG(std::int64_t, trace_steps) = 100;
  /// Steps that one line of JSON, one point of TensorBoard and one figure of Prometheus stand for: times and tokens are
  /// of all of them, the rest of the last one. Raise it when steps take less than some milliseconds.
  TESSERA_ARG(std::int64_t, every) = 1;

 public:
  static const FieldList<ObserveOptions>& fields();
};

}  // namespace tessera
