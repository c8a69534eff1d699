//go:build kernel

package driver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// beTool runs a tool for a crashing plugin, in the machine's directory. If the
// crash point is in this tool, it kills the tool before the numbered effect,
// and the plugin with it; if the tool has fewer effects, it records their
// number.
func beTool() int {
	path, err := realTool(filepath.Base(os.Args[0]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	content, err := os.ReadFile(crashFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	number := 0
	if point := strings.Fields(string(content)); len(point) == 3 && point[1] == toolName(os.Args) {
		number, err = strconv.Atoi(point[2])
	}
	if err == nil && number == 0 {
		err = syscall.Exec(path, os.Args, os.Environ())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code, effects, err := trace(path, number)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "trace", path, err)
	case effects == number:
		crash(".", string(content), os.Getppid())
	default:
		err = os.WriteFile(effectsFile, []byte(strconv.Itoa(effects)), 0o600)
	}
	if err != nil {
		return 1
	}
	return code
}

// realTool finds the tool itself; this PATH lacks the stand-ins.
func realTool(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// trace runs a program with this process's arguments and files to its end, or
// kills it before the numbered effect.
func trace(path string, number int) (code, effects int, err error) {
	// ptrace requires one thread for all requests.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 1, 0, err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 1, 0, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return 1, 0, err
	}
	for entering, signal := true, 0; ; {
		if err := unix.PtraceSyscall(pid, signal); err != nil {
			return 1, 0, err
		}
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
			return 1, 0, err
		}
		signal = 0
		switch {
		case status.Exited():
			return status.ExitStatus(), effects, nil
		case status.Signaled():
			return 128 + int(status.Signal()), effects, nil
		case status.StopSignal() != unix.SIGTRAP|0x80:
			if status.StopSignal() != unix.SIGTRAP {
				signal = int(status.StopSignal())
			}
			continue
		}
		if entering {
			var regs unix.PtraceRegs
			if err := unix.PtraceGetRegs(pid, &regs); err != nil {
				return 1, 0, err
			}
			if isEffect(pid, &regs) {
				effects++
			}
			if effects == number {
				_ = unix.Kill(pid, unix.SIGKILL)
				_, err := unix.Wait4(pid, &status, 0, nil)
				return 128 + int(unix.SIGKILL), effects, err
			}
		}
		entering = !entering
	}
}

// isEffect reports whether a system call changes state that outlives the tool:
// a write to a device, or an ioctl that changes a device or file system.
func isEffect(pid int, regs *unix.PtraceRegs) bool {
	switch regs.Orig_rax {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_FALLOCATE:
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, regs.Rdi))
		return err == nil && strings.HasPrefix(file, "/dev/") && file != os.DevNull
	case unix.SYS_IOCTL:
		const (
			deviceMapper = 0xfd
			resizeExt4   = 0x40086610 // EXT4_IOC_RESIZE_FS
			growXFS      = 0x4010586e // XFS_IOC_FSGROWFSDATA
		)
		request := uint32(regs.Rsi)
		switch request {
		case unix.BLKDISCARD, unix.BLKSECDISCARD, unix.BLKZEROOUT, resizeExt4, growXFS:
			return true
		}
		switch request & 0xff { // linux/dm-ioctl.h
		case 3, 4, 5, 6, 9, 10, 14: // create, remove, rename, suspend and resume, load, clear, message
			return request>>8&0xff == deviceMapper
		}
	}
	return false
}
