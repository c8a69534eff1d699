package lvm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// Errors that callers handle differently. Those of blockdev are the same here, so that errors
// match whether a command, the kernel or a device reports them.
var (
	// ErrNoSpace: for data or for metadata.
	ErrNoSpace = blockdev.ErrNoSpace
	// ErrNotFound: no such group, volume or device.
	ErrNotFound = blockdev.ErrNotFound
	ErrExists   = errors.New("already exists")
	ErrBusy     = blockdev.ErrBusy
	// ErrClaimed is an ErrBusy: mounted or mapped.
	ErrClaimed       = blockdev.ErrClaimed
	ErrHasDependents = errors.New("another logical volume depends on it")
	// ErrChanged: the group's sequence number is not the expected one. Nothing was done.
	ErrChanged = errors.New("another program changed the volume group")
	// ErrDeviceMissing: a disk of the group is gone or does not answer.
	ErrDeviceMissing = errors.New("device missing")
	// ErrUserData: a device's contents were written by the user of a volume, or may have been.
	ErrUserData = errors.New("its contents are a user's")
	// ErrTimedOut: the command was killed at its deadline. It may have taken effect.
	ErrTimedOut = blockdev.ErrTimedOut
	// ErrUnavailable: the lvm program or the kernel's device mapper cannot be used.
	ErrUnavailable = errors.New("LVM is not available")
)

// CommandError describes a failed LVM command. It wraps one of the sentinels above if LVM's
// message was recognised.
type CommandError struct {
	Command string
	// ExitCode is -1 when the program was killed or never started.
	ExitCode int
	Message  string
	// Err is a sentinel recognised in the message, the system's error, or nil.
	Err error
}

func (e *CommandError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: exit code %d: %v", e.Command, e.ExitCode, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Command, e.Message)
}

func (e *CommandError) Unwrap() error { return e.Err }

// phrases maps LVM's messages in the C locale to errors; the first phrase found anywhere on
// standard error decides. Carve depends on no other wording of LVM.
var phrases = []struct {
	text string
	err  error
}{
	// A missing disk makes many other things fail: look for it first.
	{"while PVs are missing", ErrDeviceMissing},
	{"while PVs appear on duplicate devices", ErrDeviceMissing},
	{"Couldn't find device with uuid", ErrDeviceMissing},
	{"Input/output error", ErrDeviceMissing},
	{"Error reading device", ErrDeviceMissing},
	{"Error writing device", ErrDeviceMissing},
	{"device-mapper driver", ErrUnavailable},
	{"insufficient free space", ErrNoSpace},
	{"Insufficient free space", ErrNoSpace},
	{"Insufficient suitable allocatable extents", ErrNoSpace},
	{"Insufficient suitable contiguous allocatable extents", ErrNoSpace},
	{"No space for", ErrNoSpace},
	{"No specified PVs have space available", ErrNoSpace},
	{"must not exceed number of physical volumes", ErrNoSpace},
	{"exceeds maximum metadata size", ErrNoSpace},
	// A full thin pool accepts no new volume.
	{"reached threshold", ErrNoSpace},
	{"metadata too large", ErrNoSpace},
	{"Maximum number of logical volumes", ErrNoSpace},
	{"already exists in volume group", ErrExists},
	{"in use.", ErrBusy},
	{"is used by another device", ErrBusy},
	{"Failed to find logical volume", ErrNotFound},
	{"not found in volume group", ErrNotFound},
	{"not found in Volume group", ErrNotFound},
	{"Cannot process volume group", ErrNotFound},
	{"\" not found", ErrNotFound}, // Volume group "NAME" not found
}

func newCommandError(command string, exitCode int, stderr string) *CommandError {
	e := &CommandError{Command: command, ExitCode: exitCode, Message: lastWords(stderr)}
	for _, p := range phrases {
		if strings.Contains(stderr, p.text) {
			e.Err = p.err
			break
		}
	}
	return e
}

// uuid matches LVM's UUIDs. Messages go to users, who could forge a disk with those of a
// group's physical volumes.
var uuid = regexp.MustCompile(`\b[0-9A-Za-z]{6}(?:-[0-9A-Za-z]{4}){5}-[0-9A-Za-z]{6}\b`)

func lastWords(stderr string) string {
	const most = 1000
	var kept []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "WARNING:") {
			kept = append(kept, line)
		}
	}
	s := uuid.ReplaceAllString(strings.Join(kept, "; "), "(UUID)")
	if len(s) > most {
		s = s[:most/2] + " … " + s[len(s)-most/2:]
	}
	return strings.ToValidUTF8(s, "?")
}
