package fleet

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that the readers add to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Limits on what a node may report. They are above what a node can hold, and protect the
// controller's memory: every replica keeps the reports of all nodes.
const (
	// MaxVolumes limits the volumes of a node.
	MaxVolumes = 20_000
	// MaxClasses limits the device classes of a node.
	MaxClasses = 256
	// maxReportBytes limits the encoded volumes and classes of a node, per message and in total.
	maxReportBytes = 16 << 20
	// maxReportFields limits the fields of one message, nested ones included. A decoded field may
	// take fifty times its encoded size.
	maxReportFields = 40 * MaxVolumes
	// maxAnswerBytes and maxAnswerFields limit the answer to one call, which holds one volume or
	// snapshot.
	maxAnswerBytes  = 64 << 10
	maxAnswerFields = 1000
	// callsOfAKind limits the concurrent calls of one kind to a node, so that a slow kind does not
	// delay a quick one. A waiting call holds no stream. A call in flight may hold 64 KiB of its
	// answer's header; the answer itself counts against the session, see package uplink.
	callsOfAKind = 128
	// decodedAnswers and decodedReports limit the messages, of all nodes together, that are decoded
	// at a time. A message takes many times its length while it is decoded, and any number of nodes
	// may send at once.
	decodedAnswers = 16
	decodedReports = 4
	// reportsPerSecond and reportsAtOnce limit the reports accepted from a node: each costs
	// processor time in proportion to the node's volumes.
	reportsPerSecond = 100
	reportsAtOnce    = 200
)

// ReportRefusedError means that a node reported more than it can hold, or something invalid. The
// fleet ignores that report.
type ReportRefusedError struct {
	Node string
	// Why is a sentence without a full stop.
	Why string
}

func (e *ReportRefusedError) Error() string {
	return fmt.Sprintf("the report of node %s is refused: %s", e.Node, e.Why)
}

func tooMuch(node, what string, most int) *ReportRefusedError {
	return &ReportRefusedError{Node: node, Why: fmt.Sprintf("it has more %s than the %d that are allowed", what, most)}
}

var protoCodec = encoding.GetCodecV2("proto")

// boundedReader rejects reports with too many parts before it decodes them. It serves one stream.
// It records the rejection in refused instead of returning an error: gRPC passes on only the text
// of a codec's error, and would not count the message as read.
type boundedReader struct {
	encoding.CodecV2
	decoding places
	node     string
	refused  *ReportRefusedError
}

func (r *boundedReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	defer r.decoding.take()()
	if _, ok := message.(*lvmdv1.WatchResponse); ok {
		if what, most := tooMany(encoded.Materialize()); what != "" {
			r.refused = tooMuch(r.node, what, most)
			return nil
		}
	}
	return r.CodecV2.Unmarshal(encoded, message)
}

// The fields of a WatchResponse that hold messages.
const (
	fieldClasses protowire.Number = 4
	fieldVolumes protowire.Number = 5
)

// tooMany returns the kind of part that exceeds its limit, or "". It leaves malformed input to the
// decoder, which rejects it.
func tooMany(encoded []byte) (what string, most int) {
	parts := map[protowire.Number]int{}
	fields := countFields(encoded, (&lvmdv1.WatchResponse{}).ProtoReflect().Descriptor(), parts)
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

// countFields includes nested fields. byNumber, unless nil, gets the counts of the top level.
func countFields(encoded []byte, message protoreflect.MessageDescriptor, byNumber map[protowire.Number]int) int {
	count := 0
	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		length := protowire.ConsumeFieldValue(number, kind, encoded[max(tag, 0):])
		if tag < 0 || length < 0 {
			break
		}
		count++
		if byNumber != nil {
			byNumber[number]++
		}
		if field := message.Fields().ByNumber(number); kind == protowire.BytesType && field != nil && field.Message() != nil {
			part, _ := protowire.ConsumeBytes(encoded[tag:])
			count += countFields(part, field.Message(), nil)
		}
		encoded = encoded[tag+length:]
	}
	return count
}

// answerReader rejects answers with too many fields before it decodes them, and bounds the texts of
// the others.
type answerReader struct {
	encoding.CodecV2
	decoding places
}

func (r answerReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	defer r.decoding.take()()
	m, ok := message.(proto.Message)
	if !ok {
		return r.CodecV2.Unmarshal(encoded, message)
	}
	if fields := countFields(encoded.Materialize(), m.ProtoReflect().Descriptor(), nil); fields > maxAnswerFields {
		return fmt.Errorf("the answer has %d fields, more than the %d that are allowed", fields, maxAnswerFields)
	}
	if err := r.CodecV2.Unmarshal(encoded, message); err != nil {
		return err
	}
	if err := boundTexts(m).refused; err != nil {
		return fmt.Errorf("the answer has no valid %w", err)
	}
	return nil
}

// unread discards answers.
type unread struct{ encoding.CodecV2 }

func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }

// places limits concurrent decoding. A holder of a place waits for nothing, so places cannot
// deadlock.
type places chan struct{}

func (p places) take() (leave func()) {
	p <- struct{}{}
	return func() { <-p }
}

func (v *View) exceeds() *ReportRefusedError {
	switch {
	case len(v.Volumes) > MaxVolumes:
		return tooMuch(v.Node, "volumes", MaxVolumes)
	case len(v.Classes) > MaxClasses:
		return tooMuch(v.Node, "device classes", MaxClasses)
	case v.bytes > maxReportBytes:
		return tooMuch(v.Node, "bytes of volumes and device classes", maxReportBytes)
	}
	return nil
}
