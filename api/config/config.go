// Package config is lvmd's configuration: one strict, versioned YAML file that
// says which device classes a node offers.
//
// It owns the file's schema and its validation as far as the file alone
// shows. Whether a volume group exists is for lvmd to find out; Problem lets it
// report the very line. Nothing in the file is ignored: an unknown
// key, a repeated one or a second document is an error. Every error names
// file, line, column, key, what was given and what is allowed.
//
//	apiVersion: carve.csi.local/v1
//	kind: LvmdConfig
//	deviceClasses:
//	  - name: local          # required, a DNS label
//	    default: true        # at most one class is
//	    volumeGroup: carve   # required, or volumeGroups: a list of several
//	    volumeGroupUUIDs: [] # those that the group may have, on whatever node
//	    type: linear         # or striped, raid1, raid10, raid5, raid6, thin
//	    stripes: 2           # data devices of striped, raid10, raid5, raid6
//	    stripeSize: 64Ki
//	    mirrors: 1           # copies beside the first, of raid1 and raid10
//	    lvcreateOptions: [--readahead=none]
//	    medium: disk         # or pmem
//	    reserve: 1Gi         # kept free: bytes with a suffix, or percent
//	    inlinePercent: 50    # of the class, for the volumes that Pods define
//	    thin: {...}          # with type: thin, the pool; see ThinPool
//	    optional: true       # a missing volume group is no error
//	    wipe: auto           # or zero, discard, none: what is done to a deleted volume
//	    wipeRate: 200Mi      # bytes per second at most; without, as fast as it goes
//	    copyRate: 200Mi      # likewise, of a volume that is made of another one
//	devices:                 # optional: the block devices that are looked at
//	  allow:
//	    - path: /dev/nvme*
//	volumeGroups:            # optional: those that lvmd makes and grows itself
//	  - name: carve
//	    devices:
//	      - path: /dev/nvme[1-9]n1
//
// Callers: cmd/lvmd reads the file, pkg/lvmd acts on it.
package config

import (
	"fmt"
	"os"
)

// APIVersion and Kind are what the file must begin with.
const (
	APIVersion = "carve.csi.local/v1"
	Kind       = "LvmdConfig"
)

// Layout is how a class' volumes lie on the devices of its volume group.
type Layout string

// Layouts.
const (
	Linear Layout = "linear"
)

// Medium is what the devices of a class are made of.
type Medium string

// Media.
const (
	Disk Medium = "disk"
	// PMEM volumes are aligned to 2 MiB and mounted with DAX.
	PMEM Medium = "pmem"
)

// Wipe is what is done to a deleted volume before its space is free.
type Wipe string

// Wipes.
const (
	// WipeAuto deallocates where the device guarantees that zeroes are read
	// afterwards, and writes zeroes elsewhere.
	WipeAuto Wipe = "auto"
	// WipeZero writes zeroes.
	WipeZero Wipe = "zero"
	// WipeDiscard informs the device that the contents are not needed. What is
	// read afterwards is up to the device.
	WipeDiscard Wipe = "discard"
	// WipeNone leaves the contents for the next volume in that space.
	WipeNone Wipe = "none"
)

// DefaultInlinePercent leaves half of a class to volumes of claims.
const DefaultInlinePercent = 50

// Config is a valid configuration.
type Config struct {
	// Classes has at least one class, in the order of the file.
	Classes []DeviceClass
	// Devices are the block devices that lvmd and its LVM commands look at.
	Devices DeviceFilter
	// VolumeGroups are those that lvmd makes and grows itself.
	VolumeGroups []VolumeGroup
}

// DeviceClass is a named way to carve volumes.
type DeviceClass struct {
	// Name is a DNS label, unique in the file.
	Name string
	// Default marks the class of requests that name none.
	Default bool
	// VolumeGroups names the LVM volume groups, at least one: a volume is
	// carved in the one with the most free space.
	VolumeGroups []string
	// VolumeGroupUUIDs are those that the groups may have; empty allows any.
	VolumeGroupUUIDs []string
	Type             Layout
	// Measures are those of the layout.
	Measures
	// LvcreateOptions are further options of lvcreate, each as --name=value.
	LvcreateOptions []string
	Medium          Medium
	// Reserve is what volumes of this class leave free in the group.
	Reserve Reserve
	// InlinePercent is the share of the class that inline volumes may take: 0 to 100.
	InlinePercent int
	// Wipe is done to deleted volumes, at WipeRate bytes per second at most; a
	// zero WipeRate is no limit.
	Wipe     Wipe
	WipeRate int64
	// CopyRate is how many bytes per second are copied at most to a volume that is made of
	// another one; zero is no limit.
	CopyRate int64
	// Thin is set exactly when Type is Thin.
	Thin *ThinPool
	// Optional classes are not offered, rather than offered with a condition, on nodes
	// without their volume group.
	Optional bool

	file      string
	index     int
	positions map[string]position
}

// Reserve is an amount of space: bytes, or a part of the whole.
type Reserve struct {
	// Bytes is zero when BasisPoints is given.
	Bytes int64
	// BasisPoints are hundredths of a percent, from 0 to 10000.
	BasisPoints int64
}

// Of is the reserve in bytes of a volume group of total bytes, rounded up.
func (r Reserve) Of(total int64) int64 {
	if r.BasisPoints == 0 {
		return r.Bytes
	}
	part := MulDiv(total, r.BasisPoints, 10000)
	// Rounded up, without a product that could overflow.
	if (total%10000)*r.BasisPoints%10000 != 0 {
		part++
	}
	return part
}

// Load reads and validates a file. What is wrong with its contents is
// Problems.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// Problem is an error about a key of this class, found later: given is the
// value, reason what is wrong with it or what is allowed instead.
func (c *DeviceClass) Problem(key, given, reason string) Problems {
	at, ok := c.positions[key]
	if !ok {
		at = c.positions[""]
	}
	return Problems{{
		File: c.file, Line: at.line, Column: at.column,
		Key: fmt.Sprintf("deviceClasses[%d].%s", c.index, key), Given: given, Reason: reason,
	}}
}
