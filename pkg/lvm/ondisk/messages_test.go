package ondisk

import (
	"reflect"
	"strings"
	"testing"
)

const messageText = `g {
id = "x"
seqno = 7
logical_volumes {
pool {
segment_count = 1
segment1 {
type = "thin-pool"
transaction_id = 5
message1 {
create = "cv2"
}
message2 {
delete = 7
}
}
}
other {
segment_count = 1
segment1 {
type = "thin-pool"
transaction_id = 9
}
}
cv1 {
segment_count = 1
segment1 {
type = "thin"
thin_pool = "pool"
device_id = 1
}
}
cv2 {
segment_count = 1
segment1 {
type = "thin"
thin_pool = "pool"
device_id = 2
origin = "cv1"
}
}
cv3 {
segment_count = 1
segment1 {
type = "thin"
thin_pool = "other"
device_id = 1
}
}
cv4 {
segment_count = 1
segment1 {
type = "striped"
}
}
}
}
`

func TestMessagesThatWaitAreReadFromMetadata(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []Pool
		bad        bool
	}{
		{name: "a pool with messages", text: messageText, want: []Pool{{
			Name: "pool", Transaction: 5, Numbers: map[string]int64{"cv1": 1, "cv2": 2}, Snapshots: map[string]bool{"cv1": false, "cv2": true},
			Creates: []string{"cv2"}, Deletes: []int64{7}}}},
		{name: "no messages", text: strings.NewReplacer("message1", "x1", "message2", "x2").Replace(messageText)},
		{name: "a word that is none", text: strings.NewReplacer("message1 {", "x1 {", "message2", "x2", `id = "x"`, `id = "message1"`).Replace(messageText)},
		{name: "a transaction that is none", text: strings.Replace(messageText, "transaction_id = 5", "transaction_id = -5", 1), bad: true},
		{name: "a message about no volume", text: strings.Replace(messageText, `create = "cv2"`, `create = "cv9"`, 1), bad: true},
		{name: "an unknown message", text: strings.Replace(messageText, `create = "cv2"`, `trim = 5`, 1), bad: true},
		{name: "a volume without a number", text: strings.Replace(messageText, "device_id = 2", "x = 2", 1), bad: true},
		{name: "text that is cut off", text: messageText[:len(messageText)-4], bad: true},
		{name: "no volumes", text: "g {\nseqno = 1\nmessage1 {\n}\n}\n", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := PoolsWithMessages([]byte(c.text))
			if (err != nil) != c.bad || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, error %v; want %+v, an error %t", got, err, c.want, c.bad)
			}
		})
	}
}

func TestSnapshotsThatAreMergedAreReadFromMetadata(t *testing.T) {
	text := strings.Replace(messageText, "cv4 {", `snapshot0 {
segment_count = 1
segment1 {
type = "snapshot"
chunk_size = 8
origin = "cv4"
merging_store = "backup"
}
}
snapshot1 {
segment_count = 1
segment1 {
type = "snapshot"
chunk_size = 8
origin = "cv3"
cow_store = "kept"
}
}
cv4 {`, 1)
	got, err := MergingSnapshots([]byte(text))
	if want := map[string]string{"cv4": "backup"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
	if _, err := MergingSnapshots([]byte(text[:len(text)/2])); err == nil {
		t.Error("half of the text was read without an error")
	}
}

func TestCachesAreReadFromMetadata(t *testing.T) {
	text := strings.Replace(messageText, "cv4 {", `pool_tdata {
segment_count = 1
segment1 {
type = "cache"
cache_pool = "nvme_cpool"
origin = "pool_tdata_corig"
}
}
cv5 {
segment_count = 1
segment1 {
type = "cache+CACHE_USES_CACHEVOL"
cache_pool = "fast_cvol"
origin = "cv5_corig"
}
}
cv6 {
segment_count = 1
segment1 {
type = "writecache"
origin = "cv6_wcorig"
writecache = "log_cvol"
}
}
cv4 {`, 1)
	got, err := Caches([]byte(text))
	if want := map[string]string{"nvme_cpool": "pool_tdata", "fast_cvol": "cv5", "log_cvol": "cv6"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v, want %v", got, err, want)
	}
	if _, err := Caches([]byte(text[:len(text)/2])); err == nil {
		t.Error("half of the text was read without an error")
	}
}
