#include <tessera/comm/task.h>
#include <tessera/flight/recorder.h>

#include "comm/group.h"

namespace tessera::comm {

Task::Task(const Communicator& comm, const std::string& what)
    : comm_(comm), outer_(comm_.group_->world().recorder->begin_task(what)) {}

Task::~Task() { comm_.group_->world().recorder->end_task(outer_); }

}  // namespace tessera::comm
