option(TESSERA_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_APPS "Build the command line" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_BUILD_FUZZERS "Build the fuzzers (needs clang; see tests/fuzz/run)" OFF)
option(TESSERA_WITH_MPI "Build the MPI backend" ON)
option(TESSERA_WITH_NCCL "Build the NCCL backend (needs the CUDA build of LibTorch)" OFF)
option(TESSERA_WITH_SENTENCEPIECE "Let `tessera data pack` use models of SentencePiece" ON)
option(TESSERA_WERROR "Treat warnings in our own code as errors" OFF)
option(TESSERA_PCH "Use precompiled headers" ON)
option(TESSERA_UNITY "Compile the files of a target together" ON)
set(TESSERA_TEST_DEVICE sim CACHE STRING "What the tests of devices run on: sim (simulated) or cuda")
set_property(CACHE TESSERA_TEST_DEVICE PROPERTY STRINGS sim cuda)
if(NOT TESSERA_TEST_DEVICE MATCHES "^(sim|cuda)$")
  message(FATAL_ERROR "TESSERA_TEST_DEVICE is \"${TESSERA_TEST_DEVICE}\"; expected sim or cuda")
endif()
set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers for our own code, as in -fsanitize=")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Note [ccache and precompiled headers]
# ccache refuses a precompiled header unless an option says that macros defined before it and time macros do not matter; ours
# defines none. The base directory makes two clones of the same commit share their results. Precompiled headers hold the
# folder that they were made in, so they are not kept themselves, and what depends on them is kept by a sum of what they
# are made of (see cmake/TesseraModule.cmake).
find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/launch_compiler" "${PROJECT_SOURCE_DIR}")
endif()
