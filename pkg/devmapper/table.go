package devmapper

import (
	"bytes"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Target is a line of a device's table.
type Target struct {
	// Start and Length are on the device, in sectors.
	Start, Length int64
	// Kind is a name such as "linear".
	Kind string
	// Params are the parameters in a table, and the target's report in a status.
	Params string
}

// spec is struct dm_target_spec.
type spec struct {
	start, length uint64
	status        int32
	next          uint32
	kind          [16]byte
}

const specSize = int(unsafe.Sizeof(spec{}))

// Table returns the live table of a device.
func Table(name string) ([]Target, error) { return targetsOf(name, flagStatusTable) }

// TableStatus returns the status of a device's targets.
func TableStatus(name string) ([]Target, error) { return targetsOf(name, flagNoFlush) }

func targetsOf(name string, flags uint32) ([]Target, error) {
	r, err := named(name)
	if err != nil {
		return nil, err
	}
	r.flags = flags
	targets, err := readTable(r)
	if err != nil {
		return nil, fmt.Errorf("table of device-mapper device %s: %w", name, err)
	}
	return targets, nil
}

// TableOf is Table by device number.
func TableOf(major, minor uint32) ([]Target, error) {
	targets, err := readTable(request{dev: unix.Mkdev(major, minor), flags: flagStatusTable})
	if err != nil {
		return nil, fmt.Errorf("table of device-mapper device %d:%d: %w", major, minor, err)
	}
	return targets, nil
}

func readTable(r request) ([]Target, error) {
	answer, memory, err := askLong(tableStatus, r, 16<<10)
	if err != nil {
		return nil, err
	}
	return parseTable(memory[min(int(answer.dataStart), len(memory)):], int(answer.targetCount))
}

// parseTable parses the kernel's answer: for each target a dm_target_spec and zero-terminated
// parameters. next is the offset from the first.
func parseTable(data []byte, count int) ([]Target, error) {
	var targets []Target
	at := 0
	for range count {
		if at < 0 || at+specSize > len(data) {
			return nil, fmt.Errorf("cut off after %d of %d targets", len(targets), count)
		}
		var s spec
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&s)), specSize), data[at:])
		params, _, _ := bytes.Cut(data[at+specSize:max(at+specSize, min(int(s.next), len(data)))], []byte{0})
		kind, _, _ := bytes.Cut(s.kind[:], []byte{0})
		targets = append(targets, Target{Start: int64(s.start), Length: int64(s.length), Kind: string(kind), Params: string(params)})
		at = int(s.next)
	}
	return targets, nil
}

// Message sends a message to the first target of a device, such as "set_transaction_id 3 4" to
// a thin pool. It drops the target's answer.
func Message(name, text string) error {
	r, err := named(name)
	if err != nil {
		return err
	}
	// The request; struct dm_target_msg, which is a sector and the text; a zero byte.
	memory := buffer(headerSize + 8 + len(text) + 1)
	copy(memory[headerSize+8:], text)
	*(*request)(unsafe.Pointer(&memory[0])) = r
	if _, err := ask(targetMessage, memory); err != nil {
		return fmt.Errorf("message %q to device-mapper device %s: %w", text, name, err)
	}
	return nil
}

// ParamsOffset is the offset of the target's parameters in the memory of LoadSecret and
// ReadSecret.
const ParamsOffset = headerSize + specSize

// LoadSecret loads a table of one target and makes it live. memory, aligned to 8 bytes, holds
// the target's parameters from ParamsOffset on: n bytes including the final zero byte. They may
// contain a key: this process has no other copy, and the kernel zeroes its own, and memory once
// it has read it.
func LoadSecret(name, kind string, sectors int64, memory []byte, n int) (Device, error) {
	r, err := named(name)
	if err != nil {
		return Device{}, err
	}
	s := spec{length: uint64(sectors), next: uint32(specSize+n+7) &^ 7}
	if len(kind) >= len(s.kind) || ParamsOffset+n > len(memory) {
		return Device{}, fmt.Errorf("table for device-mapper device %s: a target of kind %q with %d bytes does not fit", name, kind, n)
	}
	copy(s.kind[:], kind)
	r.flags, r.targetCount = flagSecureData, 1
	*(*request)(unsafe.Pointer(&memory[0])) = r
	*(*spec)(unsafe.Pointer(&memory[headerSize])) = s
	if _, err := ask(tableLoad, memory); err != nil {
		return Device{}, fmt.Errorf("loading a table for device-mapper device %s (is the kernel module dm-%s there?): %w", name, kind, err)
	}
	return Resume(name)
}

// ReadSecret reads the table of a device with one target of the given kind into memory, in the
// form for LoadSecret, and returns the parameters' length.
func ReadSecret(name, kind string, memory []byte) (n int, err error) {
	r, err := named(name)
	if err != nil {
		return 0, err
	}
	r.flags = flagStatusTable | flagSecureData
	*(*request)(unsafe.Pointer(&memory[0])) = r
	answer, err := ask(tableStatus, memory)
	if err != nil {
		return 0, fmt.Errorf("table of device-mapper device %s: %w", name, err)
	}
	s := (*spec)(unsafe.Pointer(&memory[headerSize]))
	is, _, _ := bytes.Cut(s.kind[:], []byte{0})
	end := bytes.IndexByte(memory[ParamsOffset:], 0)
	if answer.targetCount != 1 || answer.flags&flagBufferFull != 0 || int(answer.dataStart) != headerSize || string(is) != kind || end < 0 {
		return 0, fmt.Errorf("table of device-mapper device %s is not what it was made with", name)
	}
	return end + 1, nil
}
