package lvmd

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// phase is how far a volume's life has come. Its values are stored.
type phase string

const (
	// creating: an intent. At start, it is undone.
	creating phase = "creating"
	ready    phase = "ready"
	// deleting: a tombstone.
	deleting phase = "deleting"
	// unfinished: the journal was lost, and no file system is found where one
	// should be. It is finished when the volume is asked for again.
	unfinished phase = "unfinished"
	// emptied: the key of an encrypted volume is gone. It is being made anew.
	emptied phase = "emptied"
)

// record is what the journal keeps of a volume: who it is, as its tags say
// too, and how far it has come, which only the journal knows.
type record struct {
	ID    string   `json:"id"`
	Group string   `json:"group"`
	Phase phase    `json:"phase"`
	Ident identity `json:"identity"`
	// Wiped is how many bytes of a volume in phase deleting are known to read
	// as zeroes, durably, from its beginning.
	Wiped int64 `json:"wiped,omitempty"`
	// Soiled is true when something was left unwiped on purpose.
	Soiled bool `json:"soiled,omitempty"`
	// Created is when the volume was asked for.
	Created time.Time `json:"created"`
	// Emptied is when an encrypted volume was last made anew, or zero.
	Emptied time.Time `json:"emptied,omitzero"`
	// Encrypted is true when the node plugin has made the encrypted volume of one with
	// names.EncryptionLUKS.
	Encrypted bool `json:"encrypted,omitempty"`
}

// identity is what a volume was created as. It never changes.
type identity struct {
	Name   string          `json:"name"`
	Class  string          `json:"class"`
	Block  bool            `json:"block,omitempty"`
	FSType filesystem.Type `json:"fsType,omitempty"`
	// FSUUID was chosen before mkfs ran, so that a probe can tell whether it
	// finished.
	FSUUID string `json:"fsUUID,omitempty"`
	// Profile and Settings are the request's.
	Profile  filesystem.Profile  `json:"profile,omitempty"`
	Settings filesystem.Settings `json:"fsSettings,omitempty"`
	DAX      bool                `json:"dax,omitempty"`
	// Required and Limit are the request's. DefaultClass is true when it named
	// no class.
	Required     int64 `json:"required"`
	Limit        int64 `json:"limit,omitempty"`
	DefaultClass bool  `json:"defaultClass,omitempty"`
	Owner        owner `json:"owner"`
	// Encryption is names.EncryptionEphemeral, or empty; Discards are let through
	// to the disk then.
	Encryption string `json:"encryption,omitempty"`
	Discards   bool   `json:"discards,omitempty"`
	// Source is the id of the volume or snapshot whose contents this one began
	// with, or empty.
	Source string `json:"source,omitempty"`
	// Snapshot is true for snapshots, whose Source is the volume they are of.
	Snapshot bool `json:"snapshot,omitempty"`

	// atLeast is the source's size, as far as it is known.
	atLeast int64
}

// owner mirrors lvmdv1.Owner in a form that can be stored and compared.
type owner struct {
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	ClaimUID  string `json:"claimUID,omitempty"`
	// The Pod's, of an inline volume.
	PodNamespace string `json:"podNamespace,omitempty"`
	Pod          string `json:"pod,omitempty"`
	PodUID       string `json:"podUID,omitempty"`
}

func ownerOf(o *lvmdv1.Owner) owner {
	return owner{
		Cluster: o.GetClusterId(), Namespace: o.GetClaimNamespace(),
		Claim: o.GetClaimName(), ClaimUID: o.GetClaimUid(),
		PodNamespace: o.GetPodNamespace(), Pod: o.GetPodName(), PodUID: o.GetPodUid(),
	}
}

func (o owner) proto() *lvmdv1.Owner {
	return &lvmdv1.Owner{
		ClusterId: o.Cluster, ClaimNamespace: o.Namespace, ClaimName: o.Claim, ClaimUid: o.ClaimUID,
		PodNamespace: o.PodNamespace, PodName: o.Pod, PodUid: o.PodUID,
	}
}

// difference says in which way two requests of the same name differ, or
// nothing. Who owns the volume is informative, except for the installation.
func (i identity) difference(o identity) string {
	mode := func(i identity) lvmdv1.VolumeMode {
		if i.Block {
			return lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
		}
		return lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM
	}
	var d []string
	add := func(field string, a, b any) {
		if a != b {
			d = append(d, fmt.Sprintf("%s is %v, asked for %v", field, a, b))
		}
	}
	if !i.DefaultClass || !o.DefaultClass {
		// Two requests for the default agree, whatever the default is now.
		add("device_class", i.Class, o.Class)
	}
	add("mode", mode(i), mode(o))
	add("fs_type", i.FSType, o.FSType)
	add("profile", quoted(i.Profile), quoted(o.Profile))
	add("fs_settings", quoted(i.Settings), quoted(o.Settings))
	add("required_bytes", i.Required, o.Required)
	add("limit_bytes", i.Limit, o.Limit)
	add("owner.cluster_id", i.Owner.Cluster, o.Owner.Cluster)
	add("source", i.Source, o.Source)
	add("encryption", i.Encryption, o.Encryption)
	add("encryption_discards", i.Discards, o.Discards)
	return strings.Join(d, "; ")
}

// quoted makes nothing visible in a message.
func quoted[T ~string](s T) string { return fmt.Sprintf("%q", s) }

var (
	base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	idPattern   = regexp.MustCompile(`^cv[a-z2-7]{26}$`)
	// snapshotPattern is what snapshots' ids look like.
	snapshotPattern = regexp.MustCompile(`^cs[a-z2-7]{26}$`)
)

// newID mints a volume's id: "cv" and 128 random bits.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return "cv" + base32Lower.EncodeToString(b[:])
}

// newSnapshotID mints a snapshot's id, likewise.
func newSnapshotID() string { return "cs" + newID()[2:] }

// key is what the model finds volumes and snapshots by: their names, which may
// be the same.
func (i identity) key() string {
	if i.Snapshot {
		return "snapshot/" + i.Name
	}
	return i.Name
}

// newUUID mints a random (version 4) UUID.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
