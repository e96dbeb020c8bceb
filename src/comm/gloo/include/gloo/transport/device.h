#pragma once

// See ../context.h.
namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
