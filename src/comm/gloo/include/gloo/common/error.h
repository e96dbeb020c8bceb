#pragma once

// See ../context.h. Nothing of it is needed.
