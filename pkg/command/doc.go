// Package command runs programs: each in a process group of its own that is
// killed as a whole when its context ends, with bounded output, and with the
// end of this process.
//
// It owns how a process is started, killed and waited for, and counts those that
// were killed and are not gone. It knows no program, and reads no output.
//
// A process that waits in the kernel for a device that does not answer cannot be
// killed. Stuck counts it until it is gone, and no other program is run for its device.
//
// Callers: pkg/lvm, pkg/filesystem and pkg/luks run programs; pkg/lvmd and pkg/driver
// share Places among those that they have them run.
package command
