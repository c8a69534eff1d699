package fleet

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that boundedReader adds to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// What a node may report. The bounds are above what a node can hold, and keep a node
// that reports more from taking the controller's memory: every replica keeps the
// reports of all nodes.
const (
	// MaxVolumes is how many volumes a node may report.
	MaxVolumes = 20_000
	// MaxClasses is how many device classes a node may report.
	MaxClasses = 256
	// maxReportBytes bounds the encoded volumes and classes of a node, in one message
	// and in all that it reported.
	maxReportBytes = 16 << 20
	// maxReportFields bounds the fields of one message and of its volumes and classes.
	// Decoded, a field may take fifty times as much memory as encoded.
	maxReportFields = 40 * MaxVolumes
	// reportsPerSecond and reportsAtOnce bound how often a node's report is taken in: each
	// time takes the processor for as long as the node has volumes.
	reportsPerSecond = 100
	reportsAtOnce    = 200
)

// ReportRefusedError says that a node reported more than a node can hold. Its report
// is not taken in.
type ReportRefusedError struct {
	Node string
	// What is too much, Most is what is allowed of it.
	What string
	Most int
}

func (e *ReportRefusedError) Error() string {
	return fmt.Sprintf("the report of node %s is refused: it has more %s than the %d that are allowed", e.Node, e.What, e.Most)
}

// boundedReader refuses reports that have too many parts before they are decoded. It
// is for one stream: what it refused is kept, because gRPC passes on only the text of
// a codec's error.
type boundedReader struct {
	encoding.CodecV2
	node    string
	refused *ReportRefusedError
}

func newBoundedReader(node string) *boundedReader {
	return &boundedReader{CodecV2: encoding.GetCodecV2("proto"), node: node}
}

// Unmarshal implements encoding.CodecV2.
func (r *boundedReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	if _, ok := message.(*lvmdv1.WatchResponse); ok {
		if what, most := tooMany(encoded.Materialize()); what != "" {
			r.refused = &ReportRefusedError{Node: r.node, What: what, Most: most}
			return r.refused
		}
	}
	return r.CodecV2.Unmarshal(encoded, message)
}

// Numbers of the fields of a WatchResponse that hold messages.
const (
	fieldClasses protowire.Number = 4
	fieldVolumes protowire.Number = 5
)

// tooMany counts the parts of an encoded WatchResponse and returns of what there are
// too many, or nothing. What is not well formed is left to the decoder, which refuses
// it.
func tooMany(encoded []byte) (what string, most int) {
	fields := 0
	parts := map[protowire.Number]int{}
	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		length := protowire.ConsumeFieldValue(number, kind, encoded[max(tag, 0):])
		if tag < 0 || length < 0 {
			return "", 0
		}
		if kind == protowire.BytesType && (number == fieldVolumes || number == fieldClasses) {
			parts[number]++
			part, _ := protowire.ConsumeBytes(encoded[tag:])
			fields += countFields(part)
		}
		fields++
		encoded = encoded[tag+length:]
	}
	switch {
	case parts[fieldVolumes] > MaxVolumes:
		return "volumes", MaxVolumes
	case parts[fieldClasses] > MaxClasses:
		return "device classes", MaxClasses
	case fields > maxReportFields:
		return "fields", maxReportFields
	}
	return "", 0
}

// countFields returns how many fields an encoded message has at its top.
func countFields(encoded []byte) int {
	count := 0
	for len(encoded) > 0 {
		_, _, n := protowire.ConsumeField(encoded)
		if n < 0 {
			break
		}
		encoded = encoded[n:]
		count++
	}
	return count
}

// exceeds returns of what a view has too much, or nothing.
func (v *View) exceeds() *ReportRefusedError {
	switch {
	case len(v.Volumes) > MaxVolumes:
		return &ReportRefusedError{Node: v.Node, What: "volumes", Most: MaxVolumes}
	case len(v.Classes) > MaxClasses:
		return &ReportRefusedError{Node: v.Node, What: "device classes", Most: MaxClasses}
	case v.bytes > maxReportBytes:
		return &ReportRefusedError{Node: v.Node, What: "bytes of volumes and device classes", Most: maxReportBytes}
	}
	return nil
}
