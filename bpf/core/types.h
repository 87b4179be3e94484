/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Names for fixed-width integers that hold in BPF and natively alike. Everything in this folder is
 * free of helpers and of kernel types: the same code runs in the kernel and in the tests.
 */
#ifndef OSTLER_CORE_TYPES_H
#define OSTLER_CORE_TYPES_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

_Static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "widths");

#endif
