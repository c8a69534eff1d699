package lvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// More of linux/dm-ioctl.h: what changes a device. Each is _IOWR(0xfd, N, struct
// dm_ioctl).
const (
	dmListDevices = 0xc138fd02
	dmDevCreate   = 0xc138fd03
	dmDevRemove   = 0xc138fd04
	dmDevSuspend  = 0xc138fd06
	dmTableLoad   = 0xc138fd09
	dmTableClear  = 0xc138fd0a

	dmActivePresent   = 1 << 5
	dmInactivePresent = 1 << 6
	dmBufferFull      = 1 << 8
	// dmSkipLockFS lets a table be replaced without freezing the file system.
	dmSkipLockFS = 1 << 10
	// dmSecureData has the kernel zero its copies of what goes in and out.
	dmSecureData = 1 << 15

	dmHeader  = int(unsafe.Sizeof(dmIoctl{}))
	dmTarget1 = dmHeader + int(unsafe.Sizeof(dmSpec{}))
)

// dmCall asks something of the kernel with a buffer that begins with a dmIoctl
// and is aligned as that is. It sets version and sizes.
func dmCall(command uintptr, buffer []byte) (*dmIoctl, error) {
	control, err := os.OpenFile(dmControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer control.Close()
	d := (*dmIoctl)(unsafe.Pointer(&buffer[0]))
	d.version, d.dataSize, d.dataStart = [3]uint32{4, 0, 0}, uint32(len(buffer)), uint32(dmHeader)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), command, uintptr(unsafe.Pointer(d)))
	runtime.KeepAlive(control)
	switch {
	case errno == 0:
		return d, nil
	case errors.Is(errno, unix.ENXIO):
		return d, ErrNotFound
	case errors.Is(errno, unix.EBUSY):
		return d, fmt.Errorf("%w: %w", ErrBusy, errno)
	}
	return d, errno
}

// dmPlain is dmCall for what has no more than a dmIoctl. What a signal interrupts
// (EINTR: the kernel waits for writes under way before it suspends a device) is
// taken back by the kernel, and asked again.
func dmPlain(command uintptr, d dmIoctl) (dmIoctl, error) {
	for {
		answer := d
		_, err := dmCall(command, unsafe.Slice((*byte)(unsafe.Pointer(&answer)), dmHeader))
		if !errors.Is(err, unix.EINTR) {
			return answer, err
		}
	}
}

// dmNamed is a dmIoctl for a device of a name.
func dmNamed(name string) (dmIoctl, error) {
	var d dmIoctl
	if len(name) >= len(d.name) {
		return d, fmt.Errorf("device-mapper name %q is too long", name)
	}
	copy(d.name[:], name)
	return d, nil
}

// dmCreate makes a device without a table.
func dmCreate(name, uuid string) error {
	d, err := dmNamed(name)
	if err != nil {
		return err
	}
	if len(uuid) >= len(d.uuid) {
		return fmt.Errorf("device-mapper UUID %q is too long", uuid)
	}
	copy(d.uuid[:], uuid)
	if _, err := dmPlain(dmDevCreate, d); err != nil {
		return fmt.Errorf("making device-mapper device %s: %w", name, err)
	}
	return nil
}

// dmRemove removes a device. ErrNotFound when there is none, ErrBusy while
// somebody has it open.
func dmRemove(name string) error {
	d, err := dmNamed(name)
	if err != nil {
		return err
	}
	if _, err := dmPlain(dmDevRemove, d); err != nil {
		return fmt.Errorf("removing device-mapper device %s: %w", name, err)
	}
	return nil
}

// dmResume brings the table that was loaded last into use.
func dmResume(name string) (dmIoctl, error) {
	d, err := dmNamed(name)
	if err != nil {
		return d, err
	}
	d.flags = dmSkipLockFS
	if d, err = dmPlain(dmDevSuspend, d); err != nil {
		return d, fmt.Errorf("resuming device-mapper device %s: %w", name, err)
	}
	return d, nil
}

// dmSectors is how long a device's table is, read without the table's contents
// being kept.
func dmSectors(name string) (int64, error) {
	d, err := dmStatus(name)
	if err != nil {
		return 0, err
	}
	file := fmt.Sprintf("/sys/dev/block/%d:%d/size", d.major(), d.minor())
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", name, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || sectors < 1 {
		return 0, fmt.Errorf("size of %s: %s says %q", name, file, text)
	}
	return sectors, nil
}

// dmNames lists the names of all device-mapper devices.
func dmNames() ([]string, error) {
	for size := 64 << 10; size <= maxTable; size *= 4 {
		words := make([]uint64, size/8)
		buffer := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
		d, err := dmCall(dmListDevices, buffer)
		switch {
		case err != nil:
			return nil, fmt.Errorf("listing device-mapper devices: %w", err)
		case d.flags&dmBufferFull == 0:
			return parseNames(buffer[dmHeader:])
		}
	}
	return nil, fmt.Errorf("listing device-mapper devices: there are too many")
}

// parseNames reads struct dm_name_list: the device, the offset of the next
// entry, and a name that a zero byte ends.
func parseNames(data []byte) ([]string, error) {
	const head = 12
	var names []string
	for at := 0; ; {
		if at+head > len(data) {
			return nil, fmt.Errorf("the list of device-mapper devices is cut off")
		}
		dev := binary.NativeEndian.Uint64(data[at:])
		next := int(binary.NativeEndian.Uint32(data[at+8:]))
		if dev == 0 {
			return names, nil // there is none at all
		}
		name, _, _ := strings.Cut(string(data[at+head:min(len(data), at+head+128)]), "\x00")
		names = append(names, name)
		if next == 0 {
			return names, nil
		}
		at += next
	}
}

// loadCrypt gives a new device its table, with a key that is made in the memory
// that the kernel reads it from, and nowhere else.
func loadCrypt(name string, sectors int64, below dmIoctl, o CryptOptions) (dmIoctl, error) {
	s, err := newSecret()
	if err != nil {
		return dmIoctl{}, err
	}
	defer s.wipe()
	params := s.memory[dmTarget1:]
	n := copy(params, cipher+" ")
	key := params[n : n+2*keySize]
	if err := drawKey(key); err != nil {
		return dmIoctl{}, err
	}
	n += 2 * keySize
	options := ""
	if o.Discards {
		options = " 1 allow_discards"
	}
	n += copy(params[n:], fmt.Sprintf(" 0 %d:%d 0%s\x00", below.major(), below.minor(), options))
	return s.load(name, sectors, n)
}

// drawKey fills a buffer with a random key in hexadecimal digits. The key is
// drawn into the second half and spelled out from the front: what is
// overwritten was spelled out before.
func drawKey(key []byte) error {
	raw := key[len(key)/2:]
	for got := 0; got < len(raw); {
		more, err := unix.Getrandom(raw[got:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("drawing a key: %w", err)
		}
		got += max(0, more)
	}
	spell(key)
	return nil
}

// spell spells out the second half of a buffer into all of it.
func spell(key []byte) {
	const digits = "0123456789abcdef"
	raw := key[len(key)/2:]
	for i := range raw {
		b := raw[i]
		key[2*i], key[2*i+1] = digits[b>>4], digits[b&15]
	}
}

// extendCrypt replaces a device's table by the same one of another length.
func extendCrypt(name string, sectors int64) error {
	s, err := newSecret()
	if err != nil {
		return err
	}
	defer s.wipe()
	d, err := dmNamed(name)
	if err != nil {
		return err
	}
	d.flags = dmStatusTable | dmSecureData
	*s.header() = d
	got, err := dmCall(dmTableCommand, s.memory)
	switch {
	case err != nil:
		return fmt.Errorf("table of %s: %w", name, err)
	case got.targetCount != 1 || got.flags&dmTableCutOff != 0 || int(got.dataStart) != dmHeader:
		return fmt.Errorf("table of %s is not what it was made with", name)
	}
	params := s.memory[dmTarget1:]
	n := 0
	for n < len(params) && params[n] != 0 {
		n++
	}
	if string(s.spec().kind[:6]) != "crypt\x00" || n == len(params) {
		return fmt.Errorf("table of %s is not what it was made with", name)
	}
	_, err = s.load(name, sectors, n+1)
	return err
}

// secret is memory for one ioctl with a key in it: it is locked, in no core
// dump, in no child process, and zeroed at the end. The key is never anywhere
// else in this process, least of all in memory that Go moves or keeps.
type secret struct{ memory []byte }

func newSecret() (*secret, error) {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for a key: %w", err)
	}
	s := &secret{b}
	err = errors.Join(unix.Mlock(b), unix.Madvise(b, unix.MADV_DONTDUMP), unix.Madvise(b, unix.MADV_DONTFORK))
	if err != nil {
		s.wipe()
		return nil, fmt.Errorf("memory for a key cannot be locked: %w", err)
	}
	return s, nil
}

func (s *secret) wipe() {
	clear(s.memory)
	runtime.KeepAlive(s.memory)
	_ = unix.Munmap(s.memory)
}

func (s *secret) header() *dmIoctl { return (*dmIoctl)(unsafe.Pointer(&s.memory[0])) }

func (s *secret) spec() *dmSpec { return (*dmSpec)(unsafe.Pointer(&s.memory[dmHeader])) }

// load loads a table of one target, whose parameters have n bytes and are in the
// memory already, and brings it into use.
func (s *secret) load(name string, sectors int64, n int) (dmIoctl, error) {
	d, err := dmNamed(name)
	if err != nil {
		return d, err
	}
	d.flags, d.targetCount = dmSecureData, 1
	*s.header() = d
	spec := dmSpec{length: uint64(sectors), next: uint32(int(unsafe.Sizeof(dmSpec{}))+n+7) &^ 7}
	copy(spec.kind[:], "crypt")
	*s.spec() = spec
	if _, err := dmCall(dmTableLoad, s.memory); err != nil {
		return d, fmt.Errorf("loading a table for %s (is the kernel module dm-crypt there?): %w", name, err)
	}
	return dmResume(name)
}
