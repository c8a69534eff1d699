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

// maxText limits, in bytes, each text that users read: the messages of errors and conditions.
// Longer ones are cut.
const maxText = 1 << 10

// textBound describes the allowed values of a text of a node. Texts go into Events, logs, API
// objects and requests to nodes.
type textBound struct {
	// most limits the length in bytes.
	most int
	// besides are the allowed characters other than letters and digits.
	besides string
	// prose is for people to read. Any characters are allowed except those that control a terminal,
	// and a long text is cut. Other texts are names: a cut one would name something else.
	prose bool
	// key identifies the subject of a message: the fleet rejects a message with an invalid one. It
	// drops an invalid value of any other name, so that an administrator who changes a tag of one
	// volume does not lose the node.
	key bool
	// instead replaces a dropped value.
	instead string
}

var (
	prose     = textBound{most: maxText, prose: true}
	key       = textBound{most: 128, besides: "+_.-", key: true}
	name      = textBound{most: 128, besides: "+_.-"}
	inCluster = textBound{most: 253, besides: "._-"} // a name in Kubernetes
	kind      = textBound{most: 64, instead: "Unknown"}
	// joined holds the names or UUIDs of all groups of a class.
	joined = textBound{most: 16 << 10, besides: "+_.-,"}
	path   = textBound{most: 512, besides: "/+_.-"}
)

// textBounds covers all texts that nodes answer with or report. A field without an entry must be
// empty.
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

type texts struct {
	// refused is about the first invalid key, leftOut about the first other invalid name.
	refused, leftOut error
}

// boundTexts cuts prose and drops invalid names in m and its nested messages, in place. m must not
// be shared yet.
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

func (t *texts) entries(field protoreflect.FieldDescriptor, m protoreflect.Map) {
	m.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		_, other := t.value(field.MapKey(), key.Value())
		if _, changed := t.value(field.MapValue(), v); changed || other {
			m.Clear(key)
		}
		return true
	})
}

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

func (b textBound) allows(text string) bool {
	return len(text) <= b.most && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(b.besides, r)
	})
}

// cut truncates a text to maxText bytes, at the end of a character, and replaces characters that
// control a terminal.
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

var reasons = regexp.MustCompile(`^[A-Z][A-Z_]{0,63}$`)

// boundError sanitizes the error of a node: codes unknown to gRPC become Unknown, as metrics count
// by code; the message is cut; of the details, only lvmd's reason remains.
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
