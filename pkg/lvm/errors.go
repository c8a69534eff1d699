package lvm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// What can go wrong, as far as callers act on it differently. Those of blockdev
// are the same here: what fails below matches, whether a command, the kernel or
// a device says so.
var (
	// ErrNoSpace: the group has too little free space, for data or for metadata.
	ErrNoSpace = blockdev.ErrNoSpace
	// ErrNotFound: no such group, volume or device.
	ErrNotFound = blockdev.ErrNotFound
	// ErrExists: the name is taken.
	ErrExists = errors.New("already exists")
	// ErrBusy: the volume is open.
	ErrBusy = blockdev.ErrBusy
	// ErrClaimed is the ErrBusy of a volume that is mounted or mapped.
	ErrClaimed = blockdev.ErrClaimed
	// ErrHasDependents: another logical volume depends on the volume, see Dependent.
	ErrHasDependents = errors.New("another logical volume depends on it")
	// ErrChanged: the group has another sequence number than it was to have. Nothing was done.
	ErrChanged = errors.New("another program changed the volume group")
	// ErrDeviceMissing: a disk of the group is gone or does not answer.
	ErrDeviceMissing = errors.New("device missing")
	// ErrUserData: what a device holds was written by the user of a volume, or may have been.
	ErrUserData = errors.New("its contents are a user's")
	// ErrTimedOut: the command did not end within its deadline and was killed.
	// What it did is unknown.
	ErrTimedOut = blockdev.ErrTimedOut
	// ErrUnavailable: the lvm program or the kernel's device mapper cannot be used.
	ErrUnavailable = errors.New("LVM is not available")
)

// CommandError says how an LVM command failed. It matches one of the
// sentinels above with errors.Is when LVM's words were understood.
type CommandError struct {
	// Command is the subcommand, such as "lvcreate".
	Command string
	// ExitCode is the program's, or -1 when it was killed or never started.
	ExitCode int
	// Message is what LVM said that mattered, one line.
	Message string
	// Err is the sentinel that the message was recognised as, or the
	// system's error, or nil.
	Err error
}

func (e *CommandError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: exit code %d: %v", e.Command, e.ExitCode, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Command, e.Message)
}

func (e *CommandError) Unwrap() error { return e.Err }

// phrases recognises LVM's messages, in the C locale, in this order: the
// first phrase found anywhere on standard error decides. All of LVM's wording
// that Carve depends on is here.
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
	// A thin pool that is full gives no new volume.
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

// newCommandError makes sense of a failed command's standard error.
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

// uuid matches LVM's. Who knows those of a group's physical volumes can forge one, and messages go to users.
var uuid = regexp.MustCompile(`\b[0-9A-Za-z]{6}(?:-[0-9A-Za-z]{4}){5}-[0-9A-Za-z]{6}\b`)

// lastWords picks the lines that say why: all that are no warnings, joined
// and bounded, without UUIDs.
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
