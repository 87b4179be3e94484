/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The guest's half of the hints layer, as functions that Rust can call. */
#include "hints.h"

u32 core_hints_choose_vcpu(const struct hints_table *table, const struct hints_sets *sets,
			   const struct hints_cores *cores, u32 rule, u32 vcpus, u32 prev,
			   u32 group);
u32 core_hints_place_task(const struct hints_table *table, const struct hints_sets *sets,
			  const struct hints_cores *cores, u32 rule, u32 vcpus, u32 prev);
void core_hints_busy(struct hints_cores *cores, const struct hints_table *table, u32 vcpu,
		     u32 busy);
void core_hints_recount(struct hints_cores *cores, const struct hints_table *table,
			const struct hints_sets *sets, u32 vcpus);
u64 core_hints_quota(u32 group_vcpus, u32 threads, u32 vcpus);
u32 core_hints_refresh(struct hints_tree *tree, const struct hints_table *table);
u32 core_hints_choose_group(const struct hints_tree *tree, const struct hints_map *map, u32 from);
u32 core_hints_move(struct hints_tree *tree, struct hints_map *map, u32 from, u32 to);
u32 core_hints_full(const struct hints_tree *tree, u32 group);
void core_hints_ask(const struct hints_tree *tree, const struct hints_table *table,
		    struct hints_pins *pins);

u32 core_hints_choose_vcpu(const struct hints_table *table, const struct hints_sets *sets,
			   const struct hints_cores *cores, u32 rule, u32 vcpus, u32 prev,
			   u32 group)
{
	return hints_choose_vcpu(table, sets, cores, rule, vcpus, prev, group);
}

u32 core_hints_place_task(const struct hints_table *table, const struct hints_sets *sets,
			  const struct hints_cores *cores, u32 rule, u32 vcpus, u32 prev)
{
	return hints_place_task(table, sets, cores, rule, vcpus, prev);
}

void core_hints_busy(struct hints_cores *cores, const struct hints_table *table, u32 vcpu, u32 busy)
{
	hints_busy(cores, table, vcpu, busy);
}

void core_hints_recount(struct hints_cores *cores, const struct hints_table *table,
			const struct hints_sets *sets, u32 vcpus)
{
	hints_recount(cores, table, sets, vcpus);
}

u64 core_hints_quota(u32 group_vcpus, u32 threads, u32 vcpus)
{
	return hints_quota(group_vcpus, threads, vcpus);
}

u32 core_hints_refresh(struct hints_tree *tree, const struct hints_table *table)
{
	return hints_refresh(tree, table);
}

u32 core_hints_choose_group(const struct hints_tree *tree, const struct hints_map *map, u32 from)
{
	return hints_choose_group(tree, map, from);
}

u32 core_hints_move(struct hints_tree *tree, struct hints_map *map, u32 from, u32 to)
{
	return hints_move(tree, map, from, to);
}

u32 core_hints_full(const struct hints_tree *tree, u32 group)
{
	return hints_full(tree, group);
}

void core_hints_ask(const struct hints_tree *tree, const struct hints_table *table,
		    struct hints_pins *pins)
{
	hints_ask(tree, table, pins);
}
