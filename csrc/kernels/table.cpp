// Fills this instruction set's table of kernels.
#include "kernels/kernels.h"

#define OCTAVO_QUOTE_(x) #x
#define OCTAVO_QUOTE(x) OCTAVO_QUOTE_(x)

namespace octavo::OCTAVO_ISA_NAMESPACE {

extern const Kernels kernels = {
    OCTAVO_QUOTE(OCTAVO_ISA_NAMESPACE),
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
