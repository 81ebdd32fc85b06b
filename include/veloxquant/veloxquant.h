/* All public headers of libveloxquant. */
#ifndef VELOXQUANT_VELOXQUANT_H
#define VELOXQUANT_VELOXQUANT_H

#include "veloxquant/artifact.h"
#include "veloxquant/calibration.h"
#include "veloxquant/chat.h"
#include "veloxquant/eval.h"
#include "veloxquant/gguf.h"
#include "veloxquant/kv.h"
#include "veloxquant/measure.h"
#include "veloxquant/model.h"
#include "veloxquant/npy.h"
#include "veloxquant/plan.h"
#include "veloxquant/reservoir.h"
#include "veloxquant/session.h"
#include "veloxquant/status.h"
#include "veloxquant/threads.h"
#include "veloxquant/tokenizer.h"

#endif
