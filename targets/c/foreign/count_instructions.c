/* A plugin of qemu that counts the guest's instructions in a page that it shares with whoever reads the count.
 *
 * qemu -plugin count_instructions.so,fd=NUMBER: the first 64 bits of this file are the count. The file is closed
 * before the guest begins, so that the guest has no descriptor of it. The few functions of qemu's plugin
 * interface that are used are declared here: they are the same in all its versions.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef INTERFACE
#define INTERFACE 1
#endif

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_info;
typedef void (*translation_callback)(plugin_id, struct qemu_plugin_tb *);
typedef void (*execution_callback)(unsigned, void *);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id plugin, translation_callback callback);
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *block, execution_callback callback, int flags, void *data);

__attribute__((visibility("default"))) int qemu_plugin_version = INTERFACE;

static volatile uint64_t *count;

static void add_block(unsigned cpu, void *instructions)
{
    (void)cpu;
    *count += (uint64_t)(uintptr_t)instructions;
}

static void watch_block(plugin_id plugin, struct qemu_plugin_tb *block)
{
    (void)plugin;
    qemu_plugin_register_vcpu_tb_exec_cb(block, add_block, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    plugin_id plugin, const struct qemu_plugin_info *info, int argc, char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], "fd=", 3))
        return -1;
    int file = atoi(argv[0] + 3);
    void *page = mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return -1;
    close(file);
    count = page;
    qemu_plugin_register_vcpu_tb_trans_cb(plugin, watch_block);
    return 0;
}
