"""An AdmissionReview in, an AdmissionReview out: `reviewer` decides, `admission_review` is the codec."""
