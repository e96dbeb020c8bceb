#include <tessera/observe/observe_options.h>

namespace tessera {

const FieldList<ObserveOptions>& ObserveOptions::fields() {
  static const FieldList<ObserveOptions> list =
      FieldList<ObserveOptions>("observe")
          .add_choice("progress", &ObserveOptions::progress_, {"auto", "plain", "off"},
                      "auto: one line rewritten in place on a terminal, nothing elsewhere; plain: a line now and then.")
          .add("plain_every", &ObserveOptions::plain_every_, "How often a plain line appears.")
          .add("json", &ObserveOptions::json_, "A file that gets one JSON object a step; empty: none.")
          .add("tensorboard", &ObserveOptions::tensorboard_, "A folder for TensorBoard's event files; empty: none.")
          .add("prometheus", &ObserveOptions::prometheus_,
               "Where Prometheus finds the figures: a port of the loopback address, or address:port; empty: nowhere.")
          .add("trace", &ObserveOptions::trace_,
               "The Perfetto trace of rank R goes to the file `trace`.rankR.pftrace; empty: none.")
          .add("trace_skip", &ObserveOptions::trace_skip_, "How many steps before the trace begins.")
          .add("trace_steps", &ObserveOptions::trace_steps_, "How many steps the trace holds; 0: all of them.")
          .add("every", &ObserveOptions::every_, "Steps that one line of JSON and one point of TensorBoard stand for.");
  return list;
}

}  // namespace tessera
