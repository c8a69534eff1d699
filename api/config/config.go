// Package config parses lvmd's configuration: a strict, versioned YAML file with the device
// classes of a node.
//
// It checks the file by itself; lvmd checks volume groups, and reports them with Problem at
// their line. Unknown or repeated keys and a second document are errors. Every error names
// file, line, column, key, given value and allowed values.
//
//	apiVersion: carve.csi.local/v1
//	kind: LvmdConfig
//	deviceClasses:
//	  - name: local          # required, a DNS label
//	    default: true        # at most one class
//	    volumeGroup: carve   # required, or volumeGroups: a list of several
//	    volumeGroupUUIDs: [] # allowed UUIDs of the group, on any node
//	    type: linear         # or striped, raid1, raid10, raid5, raid6, thin
//	    stripes: 2           # data devices of striped, raid10, raid5, raid6
//	    stripeSize: 64Ki
//	    mirrors: 1           # further copies, of raid1 and raid10
//	    lvcreateOptions: [--readahead=none]
//	    medium: disk         # or pmem
//	    reserve: 1Gi         # kept free: bytes with a suffix, or percent
//	    inlinePercent: 50    # of the class, for inline volumes
//	    thin: {...}          # with type: thin, the pool; see ThinPool
//	    optional: true       # a missing volume group is no error
//	    wipe: auto           # or zero, discard, none: for deleted volumes
//	    wipeRate: 200Mi      # maximum bytes per second; without, unlimited
//	    copyRate: 200Mi      # likewise, for copies of volumes
//	devices:                 # optional: the block devices to use
//	  allow:
//	    - path: /dev/nvme*
//	volumeGroups:            # optional: groups that lvmd makes and grows
//	  - name: carve
//	    devices:
//	      - path: /dev/nvme[1-9]n1
package config

import (
	"fmt"
	"os"
)

// APIVersion and Kind must start the file.
const (
	APIVersion = "carve.csi.local/v1"
	Kind       = "LvmdConfig"
)

// Layout places a class' volumes on the devices of its volume group.
type Layout string

// Layouts.
const (
	Linear Layout = "linear"
)

// Medium is the kind of a class' devices.
type Medium string

// Media.
const (
	Disk Medium = "disk"
	// PMEM volumes are aligned to 2 MiB and mounted with DAX.
	PMEM Medium = "pmem"
)

// Wipe treats a deleted volume before its space is free.
type Wipe string

// Wipes.
const (
	// WipeAuto deallocates if the device guarantees that reads then return zeroes, and writes
	// zeroes otherwise.
	WipeAuto Wipe = "auto"
	// WipeZero writes zeroes.
	WipeZero Wipe = "zero"
	// WipeDiscard discards the contents. Later reads may return anything.
	WipeDiscard Wipe = "discard"
	// WipeNone leaves the contents for the next volume in that space.
	WipeNone Wipe = "none"
)

// DefaultInlinePercent leaves half of a class to volumes of claims.
const DefaultInlinePercent = 50

// Config is a valid configuration.
type Config struct {
	// Classes is not empty, and in the order of the file.
	Classes []DeviceClass
	// Devices are the block devices that lvmd and its LVM commands use.
	Devices DeviceFilter
	// VolumeGroups are those that lvmd makes and grows itself.
	VolumeGroups []VolumeGroup
}

// DeviceClass is a named kind of volumes.
type DeviceClass struct {
	// Name is a DNS label, unique in the file.
	Name string
	// Default marks the class of requests that name none.
	Default bool
	// VolumeGroups has at least one name: a volume goes into the group with the most free
	// space.
	VolumeGroups []string
	// VolumeGroupUUIDs are the allowed UUIDs of the groups; empty allows any.
	VolumeGroupUUIDs []string
	Type             Layout
	// Measures are the layout's.
	Measures
	// LvcreateOptions are further options of lvcreate, each as --name=value.
	LvcreateOptions []string
	Medium          Medium
	// Reserve is the space that volumes of this class leave free in the group.
	Reserve Reserve
	// InlinePercent is the maximum share of inline volumes, 0 to 100.
	InlinePercent int
	// WipeRate limits Wipe, in bytes per second; zero means no limit.
	Wipe     Wipe
	WipeRate int64
	// CopyRate limits copies into new volumes, in bytes per second; zero means no limit.
	CopyRate int64
	// Thin is set if and only if Type is Thin.
	Thin *ThinPool
	// Optional hides the class on nodes without its volume group, instead of offering it with
	// a condition.
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

// Of returns the reserve in bytes of a volume group of total bytes, rounded up.
func (r Reserve) Of(total int64) int64 {
	if r.BasisPoints == 0 {
		return r.Bytes
	}
	part := MulDiv(total, r.BasisPoints, 10000)
	if (total%10000)*r.BasisPoints%10000 != 0 {
		part++
	}
	return part
}

// Load reads and validates a file. Errors about its contents are Problems.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// Problem reports a key of this class after parsing. reason says what is wrong or allowed.
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
