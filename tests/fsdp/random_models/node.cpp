#include "fsdp/random_models/node.h"

namespace tessera::testing {

const NodePtr& Node::adopt(const NodePtr& child) {
  register_module("n" + std::to_string(nodes_.size()), child);
  nodes_.push_back(child);
  num_nodes_ += child->num_nodes();
  changes_buffers_ = changes_buffers_ || child->changes_buffers();
  return nodes_.back();
}

std::string Node::text(const std::string& indent) const {
  std::string lines = kind_ + "\n";
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    lines += indent + "  n" + std::to_string(i) + ": " + nodes_[i]->text(indent + "  ");
  }
  return lines;
}

}  // namespace tessera::testing
