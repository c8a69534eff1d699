package fleet

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/carve-csi/carve/api/names"
)

// maxText bounds, in bytes, each text of a node that is shown to people: the message of an
// error and that of a condition. What is longer is cut.
const maxText = 1 << 10

// textBound is what a text of a node may be. All of them go into Events, logs, objects of the API
// server or what nodes are asked for.
type textBound struct {
	// most is how many bytes it may have.
	most int
	// besides are the characters that it may have besides letters and digits.
	besides string
	// prose is for people to read. It may have any character but those that control a terminal, and
	// is cut. What is not prose is a name: cut, it would be that of something else.
	prose bool
	// key is by what a message says what it is about: without it the message is refused. Of another
	// name that is none, the value is left out: an administrator who changed a tag of one volume
	// must not lose the node.
	key bool
	// instead takes the place of a value that is left out.
	instead string
}

var (
	prose     = textBound{most: maxText, prose: true}
	key       = textBound{most: 128, besides: "+_.-", key: true}
	name      = textBound{most: 128, besides: "+_.-"}
	inCluster = textBound{most: 253, besides: "._-"} // what Kubernetes calls something
	kind      = textBound{most: 64, instead: "Unknown"}
	// joined are the names or UUIDs of all groups of a class.
	joined = textBound{most: 16 << 10, besides: "+_.-,"}
	path   = textBound{most: 512, besides: "/+_.-"}
)

// textBounds are those of all texts that nodes answer with or report. One that is not here may have
// none.
var textBounds = map[protoreflect.FullName]textBound{
	"carve.lvmd.v1.Condition.type":    kind,
	"carve.lvmd.v1.Condition.message": prose,

	"carve.lvmd.v1.Owner.cluster_id":      inCluster,
	"carve.lvmd.v1.Owner.claim_namespace": inCluster,
	"carve.lvmd.v1.Owner.claim_name":      inCluster,
	"carve.lvmd.v1.Owner.claim_uid":       inCluster,
	"carve.lvmd.v1.Owner.pod_namespace":   inCluster,
	"carve.lvmd.v1.Owner.pod_name":        inCluster,
	"carve.lvmd.v1.Owner.pod_uid":         inCluster,

	"carve.lvmd.v1.Volume.id":                    key,
	"carve.lvmd.v1.Volume.name":                  name,
	"carve.lvmd.v1.Volume.device_class":          name,
	"carve.lvmd.v1.Volume.fs_type":               name,
	"carve.lvmd.v1.Volume.device_path":           path,
	"carve.lvmd.v1.Volume.vg_name":               name,
	"carve.lvmd.v1.Volume.vg_uuid":               name,
	"carve.lvmd.v1.Volume.encryption":            name,
	"carve.lvmd.v1.Volume.fs_uuid":               name,
	"carve.lvmd.v1.Volume.profile":               name,
	"carve.lvmd.v1.Volume.FsSettingsEntry.key":   name,
	"carve.lvmd.v1.Volume.FsSettingsEntry.value": inCluster,
	"carve.lvmd.v1.Volume.adopted_from":          name,
	"carve.lvmd.v1.Volume.disks":                 name,
	"carve.lvmd.v1.VolumeSource.snapshot_id":     name,
	"carve.lvmd.v1.VolumeSource.volume_id":       name,

	"carve.lvmd.v1.Snapshot.id":               key,
	"carve.lvmd.v1.Snapshot.name":             name,
	"carve.lvmd.v1.Snapshot.source_volume_id": name,
	"carve.lvmd.v1.Snapshot.device_class":     name,
	"carve.lvmd.v1.Snapshot.fs_type":          name,
	"carve.lvmd.v1.Snapshot.vg_name":          name,
	"carve.lvmd.v1.Snapshot.vg_uuid":          name,

	"carve.lvmd.v1.DeviceClass.name":    key,
	"carve.lvmd.v1.DeviceClass.type":    name,
	"carve.lvmd.v1.DeviceClass.medium":  name,
	"carve.lvmd.v1.DeviceClass.vg_name": joined,
	"carve.lvmd.v1.DeviceClass.vg_uuid": joined,
	"carve.lvmd.v1.ClassGroup.vg_name":  name,
	"carve.lvmd.v1.ClassGroup.vg_uuid":  name,

	"carve.lvmd.v1.RevertAdoptionResponse.vg_name":        name,
	"carve.lvmd.v1.RevertAdoptionResponse.lv_name":        name,
	"carve.lvmd.v1.ListVolumesResponse.next_page_token":   key,
	"carve.lvmd.v1.ListSnapshotsResponse.next_page_token": key,

	"carve.lvmd.v1.WatchResponse.epoch":              key,
	"carve.lvmd.v1.WatchResponse.removed_volume_ids": key,
	"carve.lvmd.v1.WatchResponse.removed_classes":    key,
}

// texts bounds those of one message.
type texts struct {
	// refused says which key is none, leftOut which other name, the first of each.
	refused, leftOut error
}

// boundTexts cuts the prose of a message of a node, with the messages in it, and leaves out names that
// are none. The message is not shared yet.
func boundTexts(m proto.Message) texts {
	var t texts
	t.message(m.ProtoReflect())
	return t
}

func (t *texts) message(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			t.entries(field, v.Map())
		case field.IsList():
			for i := range v.List().Len() {
				if fit, changed := t.value(field, v.List().Get(i)); changed {
					v.List().Set(i, fit)
				}
			}
		default:
			if fit, changed := t.value(field, v); changed {
				m.Set(field, fit)
			}
		}
		return true
	})
}

// entries leaves out the entries of a map whose key or value is changed.
func (t *texts) entries(field protoreflect.FieldDescriptor, m protoreflect.Map) {
	m.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		_, other := t.value(field.MapKey(), key.Value())
		if _, changed := t.value(field.MapValue(), v); changed || other {
			m.Clear(key)
		}
		return true
	})
}

// value returns what a value becomes, and whether that is another one.
func (t *texts) value(field protoreflect.FieldDescriptor, v protoreflect.Value) (protoreflect.Value, bool) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		t.message(v.Message())
		return v, false
	case protoreflect.StringKind:
	default:
		return v, false
	}
	text, bound := v.String(), textBounds[field.FullName()]
	if bound.prose {
		fit := cut(text)
		return protoreflect.ValueOfString(fit), fit != text
	}
	if bound.allows(text) {
		return v, false
	}
	err := fmt.Errorf("%s: %q is not allowed, allowed: at most %d letters, digits and characters of %q",
		strings.TrimPrefix(string(field.FullName()), "carve.lvmd.v1."), text[:min(len(text), 64)], bound.most, bound.besides)
	if bound.key {
		t.refused = cmp.Or(t.refused, err)
		return v, false
	}
	t.leftOut = cmp.Or(t.leftOut, err)
	return protoreflect.ValueOfString(bound.instead), true
}

// allows reports whether a text is a name.
func (b textBound) allows(text string) bool {
	return len(text) <= b.most && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(b.besides, r)
	})
}

// cut returns the first maxText bytes of a text, without a part of a character at the end, and without
// characters that control a terminal.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + " …"
}

// reasons are what lvmd gives for errors.
var reasons = regexp.MustCompile(`^[A-Z][A-Z_]{0,63}$`)

// boundError returns the error that a node answered with: its code one that gRPC has, as metrics count by
// it, its message cut, and of its details nothing but lvmd's reason.
func boundError(err error) error {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return err
	}
	code := s.Code()
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	bounded := status.New(code, cut(s.Message()))
	if reason := Reason(err); reasons.MatchString(reason) {
		detailed, detailErr := bounded.WithDetails(&errdetails.ErrorInfo{Domain: names.ErrorDomain, Reason: reason})
		if detailErr == nil {
			bounded = detailed
		}
	}
	return bounded.Err()
}
