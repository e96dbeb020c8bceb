#include "launch/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace tessera::launch {
namespace {

enum class Kind { kAbsent, kFolder, kNotExecutable, kProgram };

Kind kind_of(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return Kind::kAbsent;
  if (S_ISDIR(status.st_mode)) return Kind::kFolder;
  return access(path.c_str(), X_OK) == 0 ? Kind::kProgram : Kind::kNotExecutable;
}

std::vector<std::string> candidates(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name};
  const char* variable = std::getenv("PATH");
  const std::string folders = variable == nullptr ? "/usr/bin:/bin" : variable;
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    paths.push_back((folder.empty() ? "." : folder) + "/" + name);
    begin = end + 1;
  }
  return paths;
}

std::string how_to_start(const std::string& path) {
  if (path.ends_with(".py")) return "start it by its interpreter: python3 " + path;
  return "make it executable (chmod +x), or start it by its interpreter";
}

}  // namespace

ProgramPath find_program(const std::string& name) {
  std::string refused;
  Kind reason = Kind::kAbsent;
  for (const std::string& path : candidates(name)) {
    const Kind kind = kind_of(path);
    if (kind == Kind::kProgram) return {path, "", 0};
    if (kind != Kind::kAbsent && refused.empty()) {
      refused = path;
      reason = kind;
    }
  }
  if (reason == Kind::kFolder) return {"", refused + " is a folder; a program was expected", kNotExecutableExitCode};
  if (reason == Kind::kNotExecutable) {
    return {"", refused + " is not executable; " + how_to_start(refused), kNotExecutableExitCode};
  }
  const bool is_path = name.find('/') != std::string::npos;
  return {"",
          is_path ? "there is no program " + name + "; check the path (relative ones start at the current folder)"
                  : "there is no program \"" + name + "\" in PATH; one in the current folder is called ./" + name,
          kNotFoundExitCode};
}

}  // namespace tessera::launch
