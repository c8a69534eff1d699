package spec

import (
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/carve-csi/carve/api/names"
)

// Variables of the upstream provisioner's templates for Secrets.
const (
	variableVolume     = "pv.name"
	variableNamespace  = "pvc.namespace"
	variableClaim      = "pvc.name"
	variableAnnotation = "pvc.annotations['"
)

// isStageSecret reports whether checkStageSecret reads a key.
func isStageSecret(key string) bool {
	return key == names.ParamStageSecretName || key == names.ParamStageSecretNamespace
}

// checkStageSecret holds a class' parameters about the Secret against what it
// says about encryption; errors are *InvalidError. A Secret that nothing reads
// would be sent to the node all the same.
func (e Encryption) checkStageSecret(class *storagev1.StorageClass) error {
	for _, key := range []string{names.ParamStageSecretName, names.ParamStageSecretNamespace} {
		given := class.Parameters[key]
		switch {
		case e.kind != names.EncryptionLUKS && given != "":
			return &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", given),
				Allowed: fmt.Sprintf("none without %s: %s", names.ParamEncryption, names.EncryptionLUKS)}
		case e.kind == names.EncryptionLUKS && given == "":
			return &InvalidError{Field: ClassField(class, key), Given: "nothing",
				Allowed: fmt.Sprintf("with %s: %s, the Secret that has the volume's key, such as %q", names.ParamEncryption, e.kind, exampleOf[key])}
		}
	}
	return nil
}

var exampleOf = map[string]string{
	names.ParamStageSecretName: "${pvc.name}-key", names.ParamStageSecretNamespace: "${pvc.namespace}",
}

// StageSecret is the Secret with the key for a claim's volume, nil when its
// class names none; errors are *InvalidError. The rules are the upstream
// provisioner's: the namespace is not for the claim's author to choose.
func StageSecret(class *storagev1.StorageClass, claim *v1.PersistentVolumeClaim) (*v1.SecretReference, error) {
	if class.Parameters[names.ParamStageSecretName] == "" {
		return nil, nil
	}
	values := map[string]string{variableVolume: VolumeName(claim), variableNamespace: claim.Namespace}
	namespace, err := resolve(class, names.ParamStageSecretNamespace, values)
	if err != nil {
		return nil, err
	}
	if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
		return nil, refusedSecret(class, names.ParamStageSecretNamespace, namespace, strings.Join(wrong, "; "))
	}
	values[variableClaim] = claim.Name
	for key, value := range claim.Annotations {
		values[variableAnnotation+key+"']"] = value
	}
	name, err := resolve(class, names.ParamStageSecretName, values)
	if err != nil {
		return nil, err
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return nil, refusedSecret(class, names.ParamStageSecretName, name, strings.Join(wrong, "; "))
	}
	return &v1.SecretReference{Namespace: namespace, Name: name}, nil
}

// resolve puts values into a template.
func resolve(class *storagev1.StorageClass, key string, values map[string]string) (string, error) {
	template, missing := class.Parameters[key], ""
	resolved := os.Expand(template, func(variable string) string {
		value, ok := values[variable]
		if !ok && missing == "" {
			missing = variable
		}
		return value
	})
	if missing == "" {
		return resolved, nil
	}
	allowed := "${pvc.namespace}, ${pv.name}"
	if key == names.ParamStageSecretName {
		allowed += ", ${pvc.name}, ${pvc.annotations['KEY']} with an annotation that the claim has"
	}
	return "", &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("${%s} in %q", missing, template), Allowed: allowed}
}

func refusedSecret(class *storagev1.StorageClass, key, resolved, allowed string) error {
	return &InvalidError{Field: ClassField(class, key),
		Given: fmt.Sprintf("%q, which is %.253q for this claim,", class.Parameters[key], resolved), Allowed: allowed}
}
