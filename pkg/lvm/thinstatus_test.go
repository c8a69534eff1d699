package lvm

import (
	"errors"
	"strings"
	"testing"
)

func TestAPoolsStatusIsRead(t *testing.T) {
	for _, c := range []struct {
		name, params string
		want         PoolStatus
		bad          bool
	}{
		{name: "a healthy pool", params: "2 113/1024 7/3200 - rw discard_passdown error_if_no_space - 256 ",
			want: PoolStatus{MetadataUsed: 113, MetadataTotal: 1024, DataUsed: 7, DataTotal: 3200}},
		{name: "a full pool", params: "13 231/2048 3840/3840 - out_of_data_space discard_passdown error_if_no_space - 512 ",
			want: PoolStatus{MetadataUsed: 231, MetadataTotal: 2048, DataUsed: 3840, DataTotal: 3840, OutOfData: true}},
		{name: "a pool that lost its metadata's disk", params: "13 231/2048 5/3840 - ro no_discard_passdown queue_if_no_space needs_check 512",
			want: PoolStatus{MetadataUsed: 231, MetadataTotal: 2048, DataUsed: 5, DataTotal: 3840, ReadOnly: true, NeedsCheck: true, QueuesWhenFull: true}},
		{name: "a failed pool", params: "Fail", want: PoolStatus{Failed: true}},
		{name: "a kernel that says less", params: "0 1/2 3/4 - rw", want: PoolStatus{MetadataUsed: 1, MetadataTotal: 2, DataUsed: 3, DataTotal: 4}},
		{name: "too little", params: "0 1/2 3/4", bad: true},
		{name: "no pair", params: "0 1 3/4 - rw", bad: true},
		{name: "more used than there is", params: "0 1/2 5/4 - rw", bad: true},
		{name: "no number", params: "0 1/2 x/4 - rw", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parsePoolStatus(c.params)
			if (err != nil) != c.bad || got != c.want {
				t.Errorf("got %+v, error %v; want %+v", got, err, c.want)
			}
		})
	}
}

// LVM creates the pool's first volume between the two reads: the device of the pool's name then
// lies above the pool's own.
func TestPoolWhoseDeviceIsRenamedIsNotFound(t *testing.T) {
	read := func(device string) (kind, params string, err error) {
		if strings.HasSuffix(device, "-tpool") {
			return "", "", ErrNotFound
		}
		return "linear", "", nil
	}
	if _, _, err := readPoolStatus(read, "group", "pool"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}
